"""Sockets of instances that were killed: removed, so that the kubelet does not go on calling them.

Only what a publisher made: beside each endpoint lies a link to the registration socket that names it. And only what
nobody listens on: an instance that lives has its sockets open as long as they have their names.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_publisher.kubelet.names import SocketNames
from dra_publisher.kubelet.sockets import Life, life, remove_dead, remove_unfinished
from node_host.host import Host

_RECORD: Final = ".registration-of-"


def record(host: Host, names: SocketNames) -> None:
    """Before the registration socket is made: note which one it will be. Raises OSError."""
    link = _link(host, names)
    link.unlink(missing_ok=True)
    link.symlink_to(names.registration)


def forget(host: Host, names: SocketNames) -> None:
    """After the registration socket has been removed."""
    with suppress(OSError):
        _link(host, names).unlink(missing_ok=True)


def remove_leftovers(host: Host, names: SocketNames) -> list[str]:
    """Of this instance's names, and of others with this driver name; what was removed. Raises OSError."""
    removed = [path for path in (names.registration, names.endpoint) if remove_dead(host, path)]
    for link in sorted(host.local(names.directory).glob(f"{_RECORD}*")):
        endpoint = f"{names.directory}/{link.name.removeprefix(_RECORD)}"
        registration = _target(link)
        if endpoint == names.endpoint or registration is None or Path(registration).parent != Path(names.registry):
            continue
        removed += [path for path in (registration, endpoint) if remove_dead(host, path)]
        if all(life(host, path) is Life.ABSENT for path in (registration, endpoint)):
            link.unlink(missing_ok=True)
    for directory in (names.registry, names.directory):
        remove_unfinished(host, directory)
    return removed


def _link(host: Host, names: SocketNames) -> Path:
    return host.local(names.directory) / f"{_RECORD}{names.endpoint.rpartition('/')[2]}"


def _target(link: Path) -> str | None:
    try:
        return str(link.readlink())
    except OSError:
        return None
