"""Boot identity, the publisher's note, and when to look at the host again."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from node_host.boot import BOOT_ID, BootUnknownError, read_boot_id
from node_host.evidence.publication import PUBLISHED, Published, read_published
from node_host.host import KernelFiles, Uevent
from node_host.resync import concerns_devices, watch_host
from tests.builders.paper_host import paper_host

BOOT = "7f1c0f7e-3a52-4a0a-9d0b-6f3f6f1f9f11"
CARD = "0000:23:00.0"


def test_the_boot_id_is_a_uuid_or_unknown(tmp_path: Path) -> None:
    assert read_boot_id(paper_host(tmp_path / "a", {BOOT_ID: f"{BOOT}\n"})) == BOOT
    for number, text in enumerate(("", "nonsense", BOOT * 2)):
        with pytest.raises(BootUnknownError, match="is no UUID"):
            read_boot_id(paper_host(tmp_path / str(number), {BOOT_ID: text}))
    with pytest.raises(BootUnknownError, match="No such file"):
        read_boot_id(paper_host(tmp_path / "none", {"/proc/": ""}))


def note(**changes: Any) -> str:
    return json.dumps({"version": 1, "bootID": BOOT, "addresses": [CARD]} | changes)


def test_a_note_lists_what_is_offered_in_this_boot(tmp_path: Path) -> None:
    assert read_published(paper_host(tmp_path / "none", {"/run/": ""}), BOOT) == Published()
    there = read_published(paper_host(tmp_path / "there", {PUBLISHED: note()}), BOOT)
    assert (there.addresses, there.doubt) == (frozenset({CARD}), None)
    old = read_published(paper_host(tmp_path / "old", {PUBLISHED: note(bootID="another")}), BOOT)
    assert old == Published()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[",
        "[]",
        "null",
        "1" * 5000,
        "[" * 9000,
        note(version=2),
        note(bootID=None),
        note(addresses={}),
        note(addresses=["x"]),
    ],
)
def test_a_note_that_cannot_be_understood_stands_for_every_device(tmp_path: Path, content: str) -> None:
    found = read_published(paper_host(tmp_path, {PUBLISHED: content}), BOOT)
    assert found.doubt is not None


def test_a_note_that_cannot_be_read_stands_for_every_device(tmp_path: Path) -> None:
    assert read_published(paper_host(tmp_path, {f"{PUBLISHED}/": ""}), BOOT).doubt is not None


def test_events_of_devices_and_drivers_count_and_those_of_pods_links_do_not() -> None:
    def event(subsystem: str, devpath: str) -> Uevent:
        return Uevent("add", devpath, subsystem, None, None)

    assert concerns_devices(event("pci", "/devices/pci0000:20/0000:23:00.0"))
    assert concerns_devices(event("module", "/module/vfio_pci"))
    assert concerns_devices(event("net", "/devices/pci0000:20/0000:23:00.0/net/ens1"))
    assert concerns_devices(event("block", "/devices/pci0000:20/0000:23:00.0/nvme/nvme0/nvme0n1"))
    assert not concerns_devices(event("net", "/devices/virtual/net/veth0"))
    assert not concerns_devices(event("block", "/devices/virtual/block/loop0"))


class Scripted(KernelFiles):
    """A host whose event streams end as a test says."""

    def __init__(self, root: Path, *streams: list[Uevent | OSError]) -> None:
        super().__init__(root)
        self._streams = list(streams)

    def events(self) -> Any:
        return self._events()

    @asynccontextmanager
    async def _events(self) -> AsyncIterator[AsyncIterator[Uevent]]:
        if not self._streams:
            await asyncio.Event().wait()
        script = self._streams.pop(0)
        if script and isinstance(script[0], OSError) and script[0].errno == errno.EPERM:
            raise script[0]

        async def read() -> AsyncIterator[Uevent]:
            for item in script:
                if isinstance(item, OSError):
                    raise item
                yield item

        yield read()


async def test_a_look_follows_every_gap_and_every_event_that_matters(tmp_path: Path) -> None:
    bind = Uevent("bind", "/devices/pci0000:20/0000:23:00.0", "pci", "vfio-pci", CARD)
    noise = Uevent("add", "/devices/virtual/net/veth0", "net", None, None)
    lost, refused = OSError(errno.ENOBUFS, "lost"), OSError(errno.EPERM, "refused")
    host = Scripted(tmp_path, [bind, noise, lost], [refused], [bind, bind])
    looks: list[int] = []
    pauses: list[float] = []
    ended = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            ended.set()

    watching = asyncio.create_task(watch_host(host, lambda: looks.append(1), sleep=pause))
    await asyncio.wait_for(ended.wait(), 5)
    watching.cancel()
    assert len(looks) == 5
    assert pauses == [0.2, 0.2]
