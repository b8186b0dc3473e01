"""What `npufleet-webhook` is told from outside, beside the settings that every process has."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from runtime.settings import Address
from webhooks.certificates.plan import Lifetimes

COMPONENT: Final = "npufleet-webhook"
HEALTH_PORT: Final = 9444
REVIEW_PORT: Final = 9443
SERVICE_HOST: Final = "npufleet-webhook.npufleet-system.svc"

_LIFETIMES: Final = Lifetimes()


@dataclass(frozen=True, slots=True)
class Options:
    """`certificates` is the directory of an issuer's files; None: of our own making. `hosts`: what we are asked by."""

    reviews: Address
    certificates: Path | None
    hosts: frozenset[str]
    lifetimes: Lifetimes
    drain_seconds: float


def add_review_arguments(parser: argparse.ArgumentParser, environment: Mapping[str, str] | None = None) -> None:
    """Add the options of the admission server; each has a twin in the environment (NPUFLEET_…)."""
    environment = os.environ if environment is None else environment
    group = parser.add_argument_group("options of the admission server")
    group.add_argument(
        "--listen-reviews",
        type=_address,
        default=environment.get("NPUFLEET_LISTEN_REVIEWS") or f":{REVIEW_PORT}",
        metavar="HOST:PORT",
        help=f"where the API server's reviews are answered, over TLS; port 0 picks a free one (default :{REVIEW_PORT})",
    )
    group.add_argument(
        "--certificates",
        type=Path,
        default=environment.get("NPUFLEET_CERTIFICATES") or None,
        metavar="DIR",
        help=(
            "serve tls.crt and tls.key of this directory, read again when they change; without it certificates are "
            "made and renewed here, and kept in the Secret npufleet-webhook-tls"
        ),
    )
    group.add_argument(
        "--host",
        action="append",
        default=_listed(environment.get("NPUFLEET_HOSTS")),
        metavar="NAME",
        help=f"a name or an address that the API server asks us by, repeatable (default {SERVICE_HOST})",
    )
    group.add_argument(
        "--certificate-hours",
        type=_positive,
        default=environment.get("NPUFLEET_CERTIFICATE_HOURS") or str(_hours(_LIFETIMES.leaf)),
        metavar="N",
        help=f"how long a certificate made here is valid (default {_hours(_LIFETIMES.leaf):g})",
    )
    group.add_argument(
        "--authority-hours",
        type=_positive,
        default=environment.get("NPUFLEET_AUTHORITY_HOURS") or str(_hours(_LIFETIMES.authority)),
        metavar="N",
        help=f"how long an authority made here is valid (default {_hours(_LIFETIMES.authority):g})",
    )
    group.add_argument(
        "--drain-seconds",
        type=_seconds,
        default=environment.get("NPUFLEET_DRAIN_SECONDS") or "5",
        metavar="N",
        help="how long reviews are still answered after the word to stop, while others learn of it (default 5)",
    )


def options_from(arguments: argparse.Namespace) -> Options:
    """Options from what `add_review_arguments` parsed. Raises ValueError when lifetimes do not fit together."""
    leaf, authority = timedelta(hours=arguments.certificate_hours), timedelta(hours=arguments.authority_hours)
    # Short lives, as tests have them, take short changes.
    shrink = min(1.0, leaf / _LIFETIMES.leaf * 10)
    lifetimes = Lifetimes(authority, leaf, settle=_LIFETIMES.settle * shrink, overlap=_LIFETIMES.overlap * shrink)
    return Options(
        reviews=arguments.listen_reviews,
        certificates=arguments.certificates,
        hosts=frozenset(arguments.host or [SERVICE_HOST]),
        lifetimes=lifetimes,
        drain_seconds=arguments.drain_seconds,
    )


def _listed(text: str | None) -> list[str] | None:
    return [one for one in text.replace(",", " ").split() if one] if text else None


def _hours(span: timedelta) -> float:
    return span / timedelta(hours=1)


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> float:
    return _number(text, above=0.0)


def _seconds(text: str) -> float:
    return _number(text, above=-1e-9)


def _number(text: str, *, above: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not above < value < 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number in bounds")
    return value
