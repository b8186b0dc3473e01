"""What the controller knows of the cluster: its stores, and the world that a plan is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from controllers.daemon_leases import Daemon
from controllers.node_policy.plan import NodeView, PolicyView, StateView, World, read_node, read_policy, read_state
from controllers.node_policy.plan.orders import Orders
from controllers.node_policy.plan.progress import DAEMONS
from controllers.node_policy.plan.read import read_map
from controllers.node_policy.plan.removal_hold import CONFIRM_ANNOTATION, SETTINGS_NAME
from controllers.node_policy.plan.view import MapView, Subtree
from runtime.resources import NAMESPACE
from runtime.store import Entry, Key, Store

T = TypeVar("T")


def _confirmation(config_map: Mapping[str, Any]) -> str:
    return str((config_map["metadata"].get("annotations") or {}).get(CONFIRM_ANNOTATION) or "")


def _exists(device_class: Mapping[str, Any]) -> bool:
    return bool(device_class["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Stores:
    """The objects that decide what is planned, as the feeds keep them. `settings` holds the confirmation of each.

    `classes`: which DeviceClasses exist.
    """

    policies: Store[PolicyView] = field(default_factory=lambda: Store(read_policy))
    nodes: Store[NodeView] = field(default_factory=lambda: Store(read_node))
    states: Store[StateView] = field(default_factory=lambda: Store(read_state, renew=read_state))
    settings: Store[str] = field(default_factory=lambda: Store(_confirmation))
    classes: Store[bool] = field(default_factory=lambda: Store(_exists))
    maps: Store[MapView] = field(default_factory=lambda: Store(read_map))

    def live_policies(self) -> dict[str, PolicyView]:
        """All policies as they are now, whether or not they have stood still."""
        return dict(_records(self.policies, _unreadable_policy))

    def live_maps(self) -> dict[str, MapView]:
        """All VGPUProfileMaps as they are now, whether or not they have stood still."""
        return dict(_records(self.maps, _unreadable_map))

    def live_nodes(self) -> dict[str, NodeView]:
        """All Nodes as they are now, whether or not their labels have stood still."""
        return dict(_records(self.nodes, _unreadable_node))

    def node_exists(self, name: str) -> bool:
        return Key("", name) in self.nodes

    def daemons(self) -> Iterator[Daemon]:
        """Every daemon that has ever reported: it must have a Lease."""
        for _key, state in self.states.items():  # noqa: PERF102 - a store is no dict
            for subtree in state.reports:
                yield Daemon(DAEMONS[subtree], state.name)
            if state.inventory is not None and Subtree.BINDINGS not in state.reports:
                yield Daemon(DAEMONS[Subtree.BINDINGS], state.name)

    def world(
        self,
        policies: Mapping[str, PolicyView],
        *,
        maps: Mapping[str, MapView] | None = None,
        nodes: Mapping[str, NodeView] | None = None,
        unsettled: frozenset[str] = frozenset(),
        silent: Mapping[str, frozenset[str]],
        in_flight: Mapping[str, frozenset[str]],
        refused: Iterable[str],
        confirmed: tuple[str, frozenset[str]],
        held: frozenset[str] | None,
        grace_seconds: int,
    ) -> World:
        """The world with these settled policies.

        `maps`: the VGPUProfileMaps, settled likewise; None while they are not known.
        `nodes`: the Nodes with labels that stood still, `unsettled` those of whose labels nothing is known; without
        them, the Nodes as they are now.
        `held`: what the last plan held, None before the first one.
        `confirmed`: what was confirmed when the confirmation had the value given with it; it counts while that stands.
        """
        confirmation = self.settings.get(SETTINGS_NAME, NAMESPACE) or ""
        value, names = confirmed
        return World(
            policies=policies,
            maps=maps,
            nodes=self.live_nodes() if nodes is None else nodes,
            states=dict(_records(self.states, _unreadable_state)),
            silent=silent,
            in_flight=dict(in_flight),
            refused=frozenset(refused),
            confirmation=confirmation,
            confirmed=names if value == confirmation else frozenset(),
            held=held,
            grace_seconds=grace_seconds,
            unsettled=unsettled,
            device_classes=frozenset(key.name for key, _ in self.classes.items()) if self.classes.synced else None,
        )


def _records(store: Store[T], unreadable: Callable[[Entry[T]], T]) -> Iterator[tuple[str, T]]:
    """All objects by name. One that could not be read is there all the same: absence is not an order."""
    for entry in sorted(store.entries(), key=lambda entry: entry.key):
        yield entry.key.name, entry.record if entry.record is not None else unreadable(entry)


def _unreadable_policy(entry: Entry[PolicyView]) -> PolicyView:
    return PolicyView(entry.key.name, entry.uid, 0, None, (), entry.broken, None)


def _unreadable_map(entry: Entry[MapView]) -> MapView:
    return MapView(entry.key.name, entry.uid, 0, None, entry.broken)


def _unreadable_node(entry: Entry[NodeView]) -> NodeView:
    return NodeView(entry.key.name, entry.uid, {}, "")


def _unreadable_state(entry: Entry[StateView]) -> StateView:
    return StateView(entry.key.name, entry.uid, 0, "", Orders(), None, {}, None, entry.broken)
