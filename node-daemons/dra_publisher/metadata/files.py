"""Metadata of claims on the host: below the plugin's directory of each driver, mounted into containers from there.

Each file is replaced as a whole; a container that has an older one mounted keeps that.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from dra_publisher.metadata.documents import FILE, RequestMetadata, claim_directory, encode, generation_of, owner_of
from node_host.host import Host
from node_host.whole_file import read_if_there, remove, write_whole

_STAGED: Final = f".{FILE}.new"


class MetadataFiles:
    """The files of one host. Methods raise OSError."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def write(self, requests: Iterable[RequestMetadata]) -> None:
        """Make them be there as they are given; a file that changes gets the next generation."""
        for request in requests:
            path = self._host.local(request.path)
            there = read_if_there(path)
            data = encode(request.documents, 1 if there is None else generation_of(there, request.documents))
            if data != there:
                write_whole(path, data)

    def remove(self, driver: str, namespace: str, name: str, uid: str) -> None:
        """Take away what a claim has; its directory has no UID, and another claim of that name keeps its own."""
        directory = self._host.local(claim_directory(driver, namespace, name))
        try:
            requests = sorted(os.listdir(directory))  # noqa: PTH208 - names only
        except (FileNotFoundError, NotADirectoryError):
            return
        for request in requests:
            path = directory / request / FILE
            there = read_if_there(path)
            if there is not None and owner_of(there) not in (uid, None):
                continue
            remove(path)
            remove(path.with_name(_STAGED))
            with suppress(OSError):  # somebody has put something else there
                os.rmdir(directory / request)  # noqa: PTH106
        with suppress(OSError):
            os.rmdir(directory)  # noqa: PTH106
