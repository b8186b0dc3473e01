"""Loopback ports for the components, picked while they start."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 20_000
_random = random.SystemRandom()


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that nobody listens on now; another process may still take it first, so the caller must be ready to ask
    again. It lies outside the range from which the kernel serves outgoing connections: a component that is stopped and
    started again on its port would else find it in use by some client."""
    highest = _first_ephemeral_port() - 1
    if highest > LOWEST:
        for _ in range(50):
            port = _random.randint(LOWEST, highest)
            if is_free(port):
                return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    assert isinstance(port, int)
    return port


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
