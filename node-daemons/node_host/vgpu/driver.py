"""Which release of a driver is loaded: numbers of vGPU types are the release's own, their names last."""

from dataclasses import dataclass

from node_host.host import Host


@dataclass(frozen=True, slots=True)
class DriverLoad:
    """A loaded kernel module. `release` is "" where the module tells none.

    `identity` is equal as long as numbers of types mean the same: in one boot, by one build of the module. A module
    that tells neither release nor checksum is told apart by the inode of its directory, which is new for every load.
    """

    name: str
    release: str
    identity: str


def read_driver_load(host: Host, name: str, boot_id: str) -> DriverLoad | None:
    """The module as it is loaded now; None when it is not. Raises OSError."""
    path = f"/sys/module/{name.replace('-', '_')}"
    try:
        inode = host.stat(path).st_ino
    except FileNotFoundError:
        return None
    release, checksum = _text(host, f"{path}/version"), _text(host, f"{path}/srcversion")
    build = f"{release}/{checksum}" if release or checksum else f"inode {inode}"
    return DriverLoad(name, release, f"{boot_id}/{build}")


def _text(host: Host, path: str) -> str:
    try:
        return host.read(path).decode("utf-8", "replace").strip()[:64]
    except OSError:
        return ""
