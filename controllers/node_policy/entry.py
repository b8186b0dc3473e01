"""How the node-policy controller is started as a process: its own options, and the life of one replica."""

from __future__ import annotations

import argparse

from controllers.node_policy.controller import Drainer, NodePolicyController, Options
from runtime import process
from runtime.api import Api
from runtime.health import HealthServer
from runtime.metrics import Metrics
from runtime.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that only this controller has."""
    defaults = Options()
    group = parser.add_argument_group("options of node-policy")
    group.add_argument(
        "--settle-seconds",
        type=_seconds,
        default=defaults.settle_seconds,
        metavar="N",
        help=(
            "how long policies must stand still before new orders are made of them, so that objects of one commit "
            f"act together (default {defaults.settle_seconds:g})"
        ),
    )
    group.add_argument(
        "--node-grace-seconds",
        type=_seconds,
        default=float(defaults.node_grace_seconds),
        metavar="N",
        help=(
            f"how long the orders and reports of a node outlive its Node object (default {defaults.node_grace_seconds})"
        ),
    )
    group.add_argument(
        "--drainer",
        type=Drainer,
        choices=list(Drainer),
        default=defaults.drainer,
        help=(
            "who empties a node when a device in use has to change and the policy allows it: this controller, or "
            "another one that answers the annotation npufleet.io/drain-request of the Node with npufleet.io/drain-done "
            f"of the same value (default {defaults.drainer})"
        ),
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run one replica until it is told to stop; returns the exit code."""
    options = Options(arguments.settle_seconds, int(arguments.node_grace_seconds), arguments.drainer)

    async def main(life: process.Process) -> None:
        metrics = Metrics(settings.component)
        async with Api.of(settings, metrics) as api:
            controller = NodePolicyController(api, metrics, identity=settings.identity, options=options)
            health = HealthServer(settings.listen, metrics.registry)
            # It answers from the moment it is entered, and without checks the answer would be yes.
            controller.add_checks(health)
            async with health:
                await controller.run(life)

    return process.run(main)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 10**7:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value
