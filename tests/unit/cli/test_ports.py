"""A picked port is free, on loopback, and not one that the kernel hands to outgoing connections."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cli.cluster.run import ports


def test_port_can_be_listened_on_and_is_outside_the_ephemeral_range() -> None:
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(20):
        port = ports.free_port()
        with socket.create_server(("127.0.0.1", port)):
            assert not ports.is_free(port)
        if first_ephemeral > ports.LOWEST + 1000:
            assert ports.LOWEST <= port < first_ephemeral


def test_port_in_use_is_not_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        assert not ports.is_free(busy.getsockname()[1])


def test_machine_whose_ephemeral_range_begins_low_still_gets_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_first_ephemeral_port", lambda: 1024)
    assert ports.is_free(ports.free_port())
