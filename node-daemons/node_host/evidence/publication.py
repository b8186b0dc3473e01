"""Which devices are offered to pods in this boot: the reader of the publisher's note on the host.

The publisher writes the note, synced, before a device first enters a slice. So: no note, nothing offered in this boot;
a note that cannot be read, everything may be in use.
"""

import json
from dataclasses import dataclass
from typing import Final

from node_host.host import Host
from node_host.pci.device import is_address

PUBLISHED: Final = "/run/npufleet/published.json"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Published:
    """Addresses that are offered; ``unreadable`` says why they are not known, or None."""

    addresses: frozenset[str] = frozenset()
    unreadable: str | None = None

    @property
    def doubt(self) -> str | None:
        """Why any device may be offered, or None."""
        return None if self.unreadable is None else f"whether it is offered to pods cannot be read: {self.unreadable}"


def read_published(host: Host, boot_id: str) -> Published:
    """The note `{"version": 1, "bootID": …, "addresses": […]}`; one of another boot says nothing about this one."""
    try:
        data = host.read(PUBLISHED)
    except FileNotFoundError:
        return Published()
    except OSError as error:
        return Published(unreadable=f"{PUBLISHED}: {error.strerror or error}")
    try:
        return parse_published(data, boot_id)
    except (ValueError, RecursionError) as error:
        return Published(unreadable=f"{PUBLISHED}: {error}")


def parse_published(data: bytes, boot_id: str) -> Published:
    """Raises ValueError for anything but a note."""
    note = json.loads(data)
    if not isinstance(note, dict) or note.get("version") != VERSION or not isinstance(note.get("bootID"), str):
        raise ValueError(f"not a note of version {VERSION}")
    addresses = note.get("addresses")
    if not isinstance(addresses, list) or not all(isinstance(item, str) and is_address(item) for item in addresses):
        raise ValueError("addresses is no list of PCI addresses")
    return Published(frozenset(addresses) if note["bootID"] == boot_id else frozenset())
