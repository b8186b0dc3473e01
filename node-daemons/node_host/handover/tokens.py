"""Tokens as they lie on the host: which device, in which boot, for which orders. Reading and judging them.

`<address>.json` is the publisher's offer, `<address>.taken` the same file once whoever changes the device has renamed
it. A token says that nobody has the device now, and that nobody gets it while the token is there.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from node_host.handover.token_files import HANDOVER, TokenFiles
from node_host.pci.device import is_address

VERSION: Final = 1
WAITS: Final = "it is offered to pods; waits for npufleet-dra-publisher to hand it over"
_ENTRY: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Token:
    """``entry`` is the digest of the entry of the orders that the device was handed over for."""

    address: str
    boot_id: str
    entry: str


class TokenUnreadableError(Exception):
    """A token is there and cannot be read; the text names the file and why."""


def offer_name(address: str) -> str:
    """The name of the publisher's offer."""
    return f"{address}.json"


def taken_name(address: str) -> str:
    """The name that it has once it is taken."""
    return f"{address}.taken"


def encode_token(token: Token) -> bytes:
    """The file's content."""
    document = {"version": VERSION, "address": token.address, "bootID": token.boot_id, "entry": token.entry}
    return (json.dumps(document, sort_keys=True) + "\n").encode()


def decode_token(data: bytes, address: str) -> Token:
    """Raises ValueError for anything but a token of this device."""
    try:
        document: Any = json.loads(data)
    except RecursionError as error:
        raise ValueError("not a token") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"not a token of version {VERSION}")
    named, boot_id, entry = (document.get(name) for name in ("address", "bootID", "entry"))
    if named != address:
        raise ValueError("it is the token of another device")
    if not isinstance(boot_id, str) or not isinstance(entry, str) or _ENTRY.fullmatch(entry) is None:
        raise ValueError("bootID or entry is not one")
    return Token(address, boot_id, entry)


def read_token(files: TokenFiles, name: str, address: str) -> Token | None:
    """The token in a file, None when there is none. Raises TokenUnreadableError."""
    try:
        data = files.read(name)
        return None if data is None else decode_token(data, address)
    except OSError as error:
        raise TokenUnreadableError(f"{HANDOVER}/{name}: {error.strerror or error}") from error
    except ValueError as error:
        raise TokenUnreadableError(f"{HANDOVER}/{name}: {error}") from error


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens of a host at one moment, by address.

    ``faults`` are devices of which a file cannot be read; ``unreadable`` says why nothing is known at all, or None.
    """

    offered: Mapping[str, Token] = field(default_factory=dict)
    taken: Mapping[str, Token] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    unreadable: str | None = None

    def obstacle(self, address: str, boot_id: str, entries: Collection[str]) -> str | None:
        """Why a device that is offered to pods may not be changed for orders with these digests, or None."""
        if _fits(self.taken.get(address), boot_id, entries):
            return None
        fault = self.unreadable or self.faults.get(address)
        if fault is not None:
            return f"whether it was handed over cannot be read: {fault}"
        return None if _fits(self.offered.get(address), boot_id, entries) else WAITS

    def stale(self, boot_id: str) -> tuple[str, ...]:
        """Devices that have a token of another boot."""
        every = (*self.offered.values(), *self.taken.values())
        return tuple(sorted({token.address for token in every if token.boot_id != boot_id}))


def read_tokens(files: TokenFiles, address: str | None = None) -> Tokens:
    """The tokens of the host, or of one device. Never raises."""
    offered: dict[str, Token] = {}
    taken: dict[str, Token] = {}
    faults: dict[str, str] = {}
    try:
        names = files.names() if address is None else [offer_name(address), taken_name(address)]
    except OSError as error:
        return Tokens(unreadable=f"{HANDOVER}: {error.strerror or error}")
    for name in names:
        found = _address_of(name)
        if found is None:
            continue
        try:
            token = read_token(files, name, found)
        except TokenUnreadableError as error:
            faults[found] = str(error)
            continue
        if token is not None:
            (taken if name == taken_name(found) else offered)[found] = token
    return Tokens(offered, taken, faults)


def _fits(token: Token | None, boot_id: str, entries: Collection[str]) -> bool:
    return token is not None and token.boot_id == boot_id and token.entry in entries


def _address_of(name: str) -> str | None:
    """The device of a token's file; other names are half-done steps of the publisher, and nobody's business."""
    for form in (offer_name, taken_name):
        suffix = form("")
        address = name.removesuffix(suffix)
        if name.endswith(suffix) and is_address(address):
            return address
    return None
