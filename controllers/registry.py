"""The controllers that there are. A module is imported only when it is run: kopf alone costs tens of megabytes."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from runtime.settings import Settings


class Entry(Protocol):
    """What the module of a controller offers."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Settings, argparse.Namespace], int]


@dataclass(frozen=True, slots=True)
class Controller:
    """`name` is what one types, `component` its identity; `port` is where metrics and health are by default."""

    name: str
    component: str
    port: int
    module: str
    purpose: str

    def load(self) -> Entry:
        return cast(Entry, importlib.import_module(self.module))


CONTROLLERS = (
    Controller(
        "node-policy",
        "npufleet-node-policy",
        9440,
        "controllers.node_policy.entry",
        "NPUNodePolicy: decides what becomes of which device, and rolls it out",
    ),
    Controller(
        "profile-map",
        "npufleet-profile-map",
        9441,
        "controllers.profile_map.entry",
        "VGPUProfileMap: tells what has become of its vGPUs",
    ),
)


def find(name: str) -> Controller | None:
    """The controller of that name; its component's name will do too."""
    return next((c for c in CONTROLLERS if name in (c.name, c.component)), None)
