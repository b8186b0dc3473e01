"""What every process can be told from outside: command line first, then environment, then the default.

Each option has an environment twin (NPUFLEET_ + its name), so that a manifest can set it without repeating arguments.
"""

from __future__ import annotations

import argparse
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

LOG_FORMATS = ("json", "text")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: `host` "" is every address, `port` 0 a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """ "HOST:PORT", ":PORT" or "[IPv6]:PORT"; raises ValueError that says what is expected."""
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"{text!r}: an IPv6 address goes in brackets, as in [::1]:9440")
        if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise ValueError(f"{text!r} is not HOST:PORT with a port from 0 to 65535")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Common settings of a process; what a room adds it keeps beside them."""

    component: str
    kubeconfig: Path | None
    listen: Address
    log_format: str
    log_level: str
    writes_per_second: float
    burst: int
    identity: str
    """Unique to this process: host name and a random part. Holder of election Leases."""


def add_arguments(parser: argparse.ArgumentParser, *, port: int, environment: Mapping[str, str] | None = None) -> None:
    """Add the common options; `port` is where the component's metrics and health live by default."""
    environment = os.environ if environment is None else environment

    def default(name: str, fallback: str | None) -> str | None:
        return environment.get(f"NPUFLEET_{name}") or fallback

    group = parser.add_argument_group("common options")
    group.add_argument(
        "--kubeconfig",
        type=Path,
        default=default("KUBECONFIG", None),
        metavar="FILE",
        help="how to reach the API server; without it the pod's own credentials, else $KUBECONFIG",
    )
    group.add_argument(
        "--listen",
        type=_argument(Address.parse),
        default=default("LISTEN", f":{port}"),
        metavar="HOST:PORT",
        help=f"where /metrics, /healthz and /readyz are served; port 0 picks a free one (default :{port})",
    )
    group.add_argument(
        "--log-format",
        type=_argument(_one_of(LOG_FORMATS)),
        default=default("LOG_FORMAT", "json"),
        metavar="|".join(LOG_FORMATS),
        help="default json",
    )
    group.add_argument(
        "--log-level",
        type=_argument(_one_of(LOG_LEVELS)),
        default=default("LOG_LEVEL", "info"),
        metavar="|".join(LOG_LEVELS),
        help="default info",
    )
    group.add_argument(
        "--writes-per-second",
        type=_argument(_positive),
        default=default("WRITES_PER_SECOND", "20"),
        metavar="N",
        help="limit on writes to the API server (default 20)",
    )
    group.add_argument(
        "--burst",
        type=_argument(_count),
        default=default("BURST", "40"),
        metavar="N",
        help="writes that may go out at once before the limit holds (default 40)",
    )


def from_arguments(component: str, arguments: argparse.Namespace) -> Settings:
    """Settings from what `add_arguments` parsed (which also checked what came from the environment)."""
    return Settings(
        component=component,
        kubeconfig=arguments.kubeconfig,
        listen=arguments.listen,
        log_format=arguments.log_format,
        log_level=arguments.log_level,
        writes_per_second=arguments.writes_per_second,
        burst=arguments.burst,
        identity=f"{socket.gethostname()}_{uuid.uuid4()}",
    )


def _argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse` as an argparse type whose own message reaches the user (argparse hides that of a ValueError)."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    """Like argparse's `choices`, which do not hold for defaults and so not for the environment."""

    def check(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return check


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{text!r} is not a number above 0")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(text)
