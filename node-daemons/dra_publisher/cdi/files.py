"""CDI files of claims, in the directory that container runtimes read.

The directory is on tmpfs on most hosts: after a reboot it is empty, and it may be emptied at any time. So what is there
is compared with what should be, and written again. Nothing is synced.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from dra_publisher.cdi.specs import CDI, CDIFile
from node_host.host import Host
from node_host.whole_file import read_if_there, remove, write_whole


class CDIFiles:
    """The directory of one host. Methods raise OSError."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def write(self, files: Iterable[CDIFile]) -> None:
        """Make them be there as they are given; those that are, are left alone."""
        directory = self._host.local(CDI)
        for file in files:
            path = directory / file.name
            if _content(path) != file.content:
                write_whole(path, file.content)

    def put(self, files: Iterable[CDIFile]) -> None:
        """The same without a look at what is there, for what is new."""
        directory = self._host.local(CDI)
        for file in files:
            write_whole(directory / file.name, file.content)

    def remove(self, driver: str, uid: str) -> None:
        """Take away all that a claim has at a driver, half-written files too."""
        directory = self._host.local(CDI)
        try:
            names = os.listdir(directory)  # noqa: PTH208 - names only
        except FileNotFoundError:
            return
        for name in sorted(names):
            if _is_of(name.removeprefix(".").removesuffix(".new"), driver, uid):
                remove(directory / name)


def _is_of(name: str, driver: str, uid: str) -> bool:
    if not name.endswith(".json"):
        return False
    if name.startswith(f"{driver}_metadata_{uid}_"):
        return True
    begin, end = f"k8s.{driver}-", f"_{uid}.json"
    # A kind of device has no hyphen; a longer driver name may have one.
    return name.startswith(begin) and name.endswith(end) and "-" not in name[len(begin) : -len(end)]


def _content(path: Path) -> bytes | None:
    """What is there; None where there is nothing, or nothing that can be read: it is replaced then."""
    try:
        return read_if_there(path)
    except OSError:
        return None
