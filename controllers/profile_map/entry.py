"""How the profile-map controller is started as a process."""

from __future__ import annotations

import argparse

from controllers.profile_map.controller import ProfileMapController
from runtime import process
from runtime.api import Api
from runtime.health import HealthServer
from runtime.metrics import Metrics
from runtime.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run one replica until it is told to stop; returns the exit code."""

    async def main(life: process.Process) -> None:
        metrics = Metrics(settings.component)
        async with Api.of(settings, metrics) as api:
            controller = ProfileMapController(api, metrics, identity=settings.identity)
            health = HealthServer(settings.listen, metrics.registry)
            controller.add_checks(health)
            async with health:
                await controller.run(life)

    return process.run(main)
