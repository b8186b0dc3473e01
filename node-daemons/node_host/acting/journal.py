"""What each device had before npufleet changed it.

Written before the first write to a device and dropped after its return was verified: whatever moment the daemon dies
at, an entry says at worst that a device may have been changed. Entries of another boot say nothing about drivers now.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from node_host.records_file import CorruptError, Format, RecordsChangedError, RecordsError, RecordsFile, RecordsState

JOURNAL: Final = "/var/lib/npufleet/binder/journal.json"
VERSION: Final = 2

JournalError: TypeAlias = RecordsError
JournalChangedError: TypeAlias = RecordsChangedError


@dataclass(frozen=True, slots=True)
class FormerFunctions:
    """What a card had before npufleet changed the number of its virtual functions.

    ``former_autoprobe`` None: the kernel has no such switch. ``made`` is how many npufleet made, None while at it.
    """

    former_number: int
    former_autoprobe: bool | None
    made: int | None = None


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One device. ``former_driver`` is empty when it had none; ``companion_of`` names the devices it was bound for.

    With ``functions`` the device itself stays on its driver, and it is its virtual functions that npufleet made.
    """

    former_driver: str
    bound_driver: str
    boot_id: str
    identity: str
    former_override: str | None = None
    companion_of: tuple[str, ...] = ()
    functions: FormerFunctions | None = None


JournalView: TypeAlias = Mapping[str, JournalEntry]
JournalState: TypeAlias = RecordsState[JournalEntry]


class Journal(RecordsFile[JournalEntry]):
    """The file. Every change is on disk when the call returns; safe to use from several threads."""

    def __init__(self, path: Path, *, fault: OSError | None = None) -> None:
        """With ``fault``, the reason why there is no way to the file, the journal can neither be read nor written."""
        super().__init__(path, FORMAT, fault=fault)


def _to_json(entry: JournalEntry) -> dict[str, Any]:
    value: dict[str, Any] = {
        "formerDriver": entry.former_driver,
        "boundDriver": entry.bound_driver,
        "bootID": entry.boot_id,
        "identity": entry.identity,
    }
    if entry.former_override is not None:
        value["formerOverride"] = entry.former_override
    if entry.companion_of:
        value["companionOf"] = list(entry.companion_of)
    if entry.functions is not None:
        value["functions"] = {
            "formerNumber": entry.functions.former_number,
            "formerAutoprobe": entry.functions.former_autoprobe,
            "made": entry.functions.made,
        }
    return value


def _from_json(address: str, value: dict[str, Any]) -> JournalEntry:
    texts = [value.get(name) for name in ("formerDriver", "boundDriver", "bootID", "identity")]
    override, companions = value.get("formerOverride"), value.get("companionOf", [])
    if (
        not all(isinstance(text, str) for text in texts)
        or not (override is None or isinstance(override, str))
        or not isinstance(companions, list)
        or not all(isinstance(item, str) for item in companions)
    ):
        raise CorruptError(f"the entry of {address} is not one")
    former, bound, boot_id, identity = (str(text) for text in texts)
    functions = _functions_from_json(address, value["functions"]) if "functions" in value else None
    return JournalEntry(former, bound, boot_id, identity, override, tuple(companions), functions)


def _functions_from_json(address: str, value: Any) -> FormerFunctions:
    if isinstance(value, dict):
        number, autoprobe, made = (value.get(name) for name in ("formerNumber", "formerAutoprobe", "made"))
        is_switch, is_number = isinstance(autoprobe, bool | None), made is None or type(made) is int
        if type(number) is int and is_switch and is_number:
            return FormerFunctions(number, autoprobe, made)
    raise CorruptError(f"the entry of {address} is not one")


FORMAT: Final = Format(
    what="journal",
    lost=(
        "Devices that it named are no longer known as npufleet's and stay on their present drivers; give them back by "
        "hand, then remove the file"
    ),
    version=VERSION,
    # Version 1 knew nothing of virtual functions, and is read as it stands.
    readable=(1, 2),
    to_json=_to_json,
    from_json=_from_json,
)
encode, decode = FORMAT.encode, FORMAT.decode
