"""Events from the kernel's netlink socket: what is understood, what is skipped, what ends the stream."""

import asyncio
import errno
import os
import socket
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_host.host import Uevent
from node_host.host.uevents import open_uevent_socket, parse_uevent, read_uevents
from tests.builders.examples import at_least
from tests.builders.hosts import refused

FLOOR = 2000
DEVPATH = "/devices/pci0000:20/0000:20:01.0/0000:21:00.0"


def message(header: str = f"bind@{DEVPATH}", **variables: str) -> bytes:
    values = {"ACTION": "bind", "DEVPATH": DEVPATH, "SUBSYSTEM": "pci", **variables}
    lines = [header, *(f"{key}={value}" for key, value in values.items() if value != "absent")]
    return b"".join(line.encode() + b"\0" for line in lines)


def test_event_of_a_device_is_understood() -> None:
    sent = message(
        DRIVER="vfio-pci", PCI_CLASS="120000", PCI_ID="1EFF:1250", PCI_SLOT_NAME="0000:21:00.0", SEQNUM="4711"
    )
    assert parse_uevent(sent) == Uevent("bind", DEVPATH, "pci", "vfio-pci", "0000:21:00.0")


def test_event_without_driver_and_slot_has_none() -> None:
    sent = message("add@/module/vfio_pci", ACTION="add", DEVPATH="/module/vfio_pci", SUBSYSTEM="module")
    assert parse_uevent(sent) == Uevent("add", "/module/vfio_pci", "module", None, None)


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        (b"", "cut off"),
        (message()[:-1], "cut off"),
        (b"libudev\0\xfe\xed\xca\xfe\0", "not a variable"),
        (message("add@/elsewhere"), "contradicts"),
        (message(ACTION="absent"), "ACTION is missing"),
        (message(SUBSYSTEM="absent"), "SUBSYSTEM is missing"),
        (message(DEVPATH=""), "DEVPATH is missing"),
        (message(ACTION="explode"), "unknown action"),
        (message(DEVPATH="devices"), "not below /sys"),
        (message(PCI_SLOT_NAME="21:00.0"), "no address"),
        (message() + b"ACTION=bind\0", "stands twice"),
        (message() + b"lower=x\0", "not a variable"),
        (message() + b"\0", "not a variable"),
        (message(DRIVER="x").replace(b"=x", b"=\xff"), "utf-8"),
    ],
)
def test_what_is_no_event_says_why(sent: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_uevent(sent)


def test_no_message_does_anything_but_parse_or_be_refused() -> None:
    parts = st.sampled_from([b"bind@/x", b"ACTION=bind", b"DEVPATH=/x", b"SUBSYSTEM=pci", b"=", b"A", b"\xff", b""])
    with at_least(FLOOR, "uevent messages") as examples:

        @settings(max_examples=2100, deadline=None, database=None)
        @given(st.one_of(st.binary(max_size=60), st.lists(parts, max_size=6).map(lambda one: b"\0".join(one) + b"\0")))
        def check(sent: bytes) -> None:
            examples.one()
            try:
                event = parse_uevent(sent)
            except ValueError:
                return
            assert event.devpath.startswith("/")
            assert event.subsystem

        check()


class ScriptedLoop:
    """Stands for the running loop's receive: messages with their senders, then an error."""

    def __init__(self, *received: tuple[bytes, tuple[int, int]] | OSError) -> None:
        self._received = list(received)

    async def sock_recvfrom(self, _connection: Any, _size: int) -> tuple[bytes, tuple[int, int]]:
        one = self._received.pop(0)
        if isinstance(one, OSError):
            raise one
        return one


async def test_stream_skips_strangers_and_nonsense_and_ends_when_events_were_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel, stranger = (0, 1), (4242, 1)
    loop = ScriptedLoop(
        (message(), kernel),
        (message("add@/fake", ACTION="add", DEVPATH="/fake"), stranger),
        (b"nonsense\0", kernel),
        (message(DRIVER="vfio-pci"), kernel),
        OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS)),
    )
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    events = []
    with refused("ENOBUFS"):
        async for event in read_uevents(cast(socket.socket, None)):
            events.append(event)  # noqa: PERF401 - it ends with an error
    assert [event.driver for event in events] == [None, "vfio-pci"]
    assert "Skipped a uevent" in caplog.text


def test_socket_listens_to_the_kernels_group() -> None:
    with open_uevent_socket() as connection:
        assert connection.family == socket.AF_NETLINK
        assert not connection.getblocking()
        assert connection.getsockname()[1] == 1
        assert not os.get_inheritable(connection.fileno())
