"""What each card had before npufleet changed it, and what its functions were given.

Written before the first change of a card in a boot. What a card had in another boot is gone; what its functions were
given then is what they are given again, so that a virtual machine finds its vGPU at the address where it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from node_host.records_file import CorruptError, Format, RecordsFile

RECORD: Final = "/var/lib/npufleet/writer/record.json"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class CardEntry:
    """One card. `boot_id` is the boot in which it had `former_number` functions, and types `former_profiles` on them
    by address; `given` are the profiles that npufleet gave, by function, in that boot or before.
    """

    boot_id: str
    identity: str
    former_number: int
    former_profiles: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)


def _to_json(entry: CardEntry) -> dict[str, Any]:
    return {
        "bootID": entry.boot_id,
        "identity": entry.identity,
        "formerNumber": entry.former_number,
        "formerProfiles": dict(entry.former_profiles),
        "given": dict(entry.given),
    }


def _from_json(address: str, value: dict[str, Any]) -> CardEntry:
    boot_id, identity, number = value.get("bootID"), value.get("identity"), value.get("formerNumber")
    if not isinstance(boot_id, str) or not isinstance(identity, str) or type(number) is not int:
        raise CorruptError(f"the entry of {address} is not one")
    return CardEntry(
        boot_id, identity, number, _texts(address, value, "formerProfiles"), _texts(address, value, "given")
    )


def _texts(address: str, value: dict[str, Any], name: str) -> dict[str, str]:
    found = value.get(name)
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise CorruptError(f"{name} in the entry of {address} is not one")
    return found


FORMAT: Final = Format(
    what="record",
    lost=(
        "What cards had before npufleet is no longer known: released cards keep the vGPUs that they have. Remove the "
        "file when that is as it should be"
    ),
    version=VERSION,
    readable=(VERSION,),
    to_json=_to_json,
    from_json=_from_json,
)


class Record(RecordsFile[CardEntry]):
    """The file. Every change is on disk when the call returns; safe to use from several threads."""

    def __init__(self, path: Path, *, fault: OSError | None = None) -> None:
        """With ``fault``, the reason why there is no way to the file, it can neither be read nor written."""
        super().__init__(path, FORMAT, fault=fault)
