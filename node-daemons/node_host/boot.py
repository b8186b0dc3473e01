"""Which boot of the host this is: memory of another one says nothing about drivers, overrides or handles now."""

import re
from typing import Final

from node_host.host import Host

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"  # random(4)
_FORM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class BootUnknownError(Exception):
    """The boot id cannot be read: nothing can be decided."""


def read_boot_id(host: Host) -> str:
    """The id of the running boot, a UUID. Raises BootUnknownError."""
    try:
        text = host.read(BOOT_ID).decode("ascii", "replace").strip()
    except OSError as error:
        raise BootUnknownError(f"{BOOT_ID}: {error.strerror or error}") from error
    if _FORM.fullmatch(text) is None:
        raise BootUnknownError(f"{BOOT_ID}: {text[:60]!r} is no UUID")
    return text
