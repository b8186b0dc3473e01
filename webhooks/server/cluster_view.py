"""What the server knows of the cluster: local copies kept by watches, and honest about those that are not up to date.

A copy that was never complete, or whose server has been silent for too long, is UNKNOWN: a rule that needs it says
nothing, the person who asks is told, and the process is not ready.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from pydantic import ValidationError

from controllers.node_policy.plan.read import read_inventory
from controllers.node_policy.plan.view import DeviceView
from controllers.reading import mapping
from crds.catalogue import Catalogue
from crds.models.base import KubeObject
from crds.models.kinds import BY_NAME
from crds.models.node_policy import NPUNodePolicy
from crds.models.profile_map import VGPUProfileMap
from crds.models.vnpu_quota import Amounts, VNPUQuota
from runtime.api import Api
from runtime.list_watch import ListWatch
from runtime.metrics import Metrics
from runtime.resources import (
    CONFIG_MAPS,
    NAMESPACE,
    NAMESPACES,
    NODES,
    NPU_NODE_POLICIES,
    NPU_NODE_STATES,
    VGPU_PROFILE_MAPS,
    VNPU_QUOTAS,
    Resource,
)
from runtime.store import Key, Store
from webhooks.rules.fleet import Fleet
from webhooks.rules.subject import read
from webhooks.rules.view import UNKNOWN, Labels, Unknown

T = TypeVar("T")
M = TypeVar("M", bound=KubeObject)
Devices = tuple[DeviceView, ...]

WRITERS_NAME: Final = "npufleet-writers"

_INVENTORY_SECONDS: Final = 1.0
_WRITERS_KEY: Final = "writers"


@dataclass(frozen=True, slots=True)
class KnownQuota:
    """A quota, and what its status says is used of it."""

    quota: VNPUQuota
    used: Amounts | None


class _Copy(Generic[T]):
    """One kind: its feed, and its records as a mapping that never changes, for whoever reads it from a thread."""

    def __init__(
        self,
        api: Api,
        metrics: Metrics,
        resource: Resource,
        compact: Callable[[dict[str, Any]], T],
        *,
        clock: Callable[[], float],
        no_newer_than: float = 0.0,
        namespace: str | None = None,
        field_selector: str | None = None,
    ) -> None:
        self.store: Store[T] = Store(compact)
        self.feed = ListWatch(
            api,
            resource,
            self.store,
            namespace=namespace,
            field_selector=field_selector,
            on_health=metrics.feed(resource.full_name),
            clock=clock,
        )
        self._clock = clock
        self._pause = no_newer_than
        self._changed = True
        self._made = float("-inf")
        self._all: Mapping[Key, T] = MappingProxyType({})
        self._named: Mapping[str, T] = MappingProxyType({})
        self.store.subscribe(self._note)

    def all(self) -> Mapping[Key, T] | Unknown:
        """Everything there is, by name; UNKNOWN while the feed is not healthy."""
        if not self.feed.healthy():
            return UNKNOWN
        if self._changed and self._clock() - self._made >= self._pause:
            self._all = MappingProxyType(dict(self.store.items()))
            self._named = MappingProxyType({key.name: record for key, record in self._all.items()})
            self._changed = False
            self._made = self._clock()
        return self._all

    def named(self) -> Mapping[str, T] | Unknown:
        """The same by name alone, for kinds without namespaces."""
        return UNKNOWN if self.all() is UNKNOWN else self._named

    def _note(self, _changes: object) -> None:
        self._changed = True


class Cluster:
    """The copies of one process. `view` is a look at them; take it in the event loop and use it anywhere."""

    def __init__(
        self,
        api: Api,
        metrics: Metrics,
        catalogue: Catalogue,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._catalogue = catalogue
        self._now = now

        def copy(resource: Resource, compact: Callable[[dict[str, Any]], T], pause: float = 0.0) -> _Copy[T]:
            return _Copy(api, metrics, resource, compact, clock=clock, no_newer_than=pause)

        self._policies = copy(NPU_NODE_POLICIES, _reader(NPUNodePolicy))
        self._maps = copy(VGPU_PROFILE_MAPS, _reader(VGPUProfileMap))
        self._quotas = copy(VNPU_QUOTAS, _quota)
        self._nodes = copy(NODES, _labels)
        self._namespaces = copy(NAMESPACES, _labels)
        self._fleet_of: Mapping[str, Labels] | None = None
        self._made_fleet = Fleet({})
        self._inventories = copy(NPU_NODE_STATES, _devices, _INVENTORY_SECONDS)
        self._writers = _Copy(
            api,
            metrics,
            CONFIG_MAPS,
            _listed,
            clock=clock,
            namespace=NAMESPACE,
            field_selector=f"metadata.name={WRITERS_NAME}",
        )

    def feeds(self) -> Iterator[ListWatch[Any]]:
        """What has to run for the copies to be kept."""
        for copy in (
            self._policies,
            self._maps,
            self._quotas,
            self._nodes,
            self._namespaces,
            self._inventories,
            self._writers,
        ):
            yield copy.feed

    def fault(self) -> str | None:
        """Which copies are not up to date, and why; None when all are. From any thread."""
        reasons = [reason for feed in self.feeds() if (reason := feed.reason()) is not None]
        return "; ".join(reasons) if reasons else None

    def _fleet(self) -> Fleet | Unknown:
        """The Nodes by labels; made anew when one has changed."""
        known = self._nodes.named()
        if known is UNKNOWN:
            return UNKNOWN
        if self._fleet_of is not known:
            self._made_fleet = Fleet(known)
            self._fleet_of = known
        return self._made_fleet

    def view(self) -> ClusterView:
        """What is known now."""
        return ClusterView(
            catalogue=self._catalogue,
            now=self._now(),
            known_policies=self._policies.named(),
            known_maps=self._maps.named(),
            known_quotas=self._quotas.all(),
            known_nodes=self._fleet(),
            known_namespaces=self._namespaces.named(),
            known_inventories=self._inventories.named(),
            known_writers=self._known_writers(),
        )

    def _known_writers(self) -> Collection[str] | Unknown:
        """Nobody where there is no list."""
        known = self._writers.named()
        return UNKNOWN if known is UNKNOWN else known.get(WRITERS_NAME, frozenset())


class ClusterView:
    """A look at the copies, for one review. It remembers what was asked in vain (see `missed`)."""

    __slots__ = (
        "_inventories",
        "_maps",
        "_missed",
        "_namespaces",
        "_nodes",
        "_policies",
        "_quotas",
        "_writers",
        "catalogue",
        "now",
    )

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        now: datetime,
        known_policies: Mapping[str, NPUNodePolicy] | Unknown = UNKNOWN,
        known_maps: Mapping[str, VGPUProfileMap] | Unknown = UNKNOWN,
        known_quotas: Mapping[Key, KnownQuota] | Unknown = UNKNOWN,
        known_nodes: Fleet | Unknown = UNKNOWN,
        known_namespaces: Mapping[str, Labels] | Unknown = UNKNOWN,
        known_inventories: Mapping[str, Devices | Unknown] | Unknown = UNKNOWN,
        known_writers: Collection[str] | Unknown = UNKNOWN,
    ) -> None:
        self.catalogue = catalogue
        self.now = now
        self._policies = known_policies
        self._maps = known_maps
        self._quotas = known_quotas
        self._nodes = known_nodes
        self._namespaces = known_namespaces
        self._inventories = known_inventories
        self._writers = known_writers
        self._missed: dict[str, None] = {}

    @property
    def missed(self) -> list[str]:
        """What rules asked for and the copies could not tell."""
        return list(self._missed)

    def policies(self) -> Mapping[str, NPUNodePolicy] | Unknown:
        return self._known(self._policies, "node policies")

    def profile_maps(self) -> Mapping[str, VGPUProfileMap] | Unknown:
        return self._known(self._maps, "profile maps")

    def quotas(self, namespace: str) -> Mapping[str, VNPUQuota] | Unknown:
        known = self._known(self._quotas, "quotas")
        if known is UNKNOWN:
            return UNKNOWN
        return {key.name: found.quota for key, found in known.items() if key.namespace == namespace}

    def used(self, namespace: str, quota: str) -> Amounts | Unknown:
        known = self._known(self._quotas, "quotas")
        found = UNKNOWN if known is UNKNOWN else known.get(Key(namespace, quota))
        return UNKNOWN if found is UNKNOWN or found is None or found.used is None else found.used

    def nodes(self) -> Mapping[str, Labels] | Unknown:
        return self._known(self._nodes, "Nodes")

    def inventory(self, node: str) -> Devices | Unknown:
        known = self._known(self._inventories, "inventories of nodes")
        return UNKNOWN if known is UNKNOWN else known.get(node, UNKNOWN)

    def namespaces(self) -> Mapping[str, Labels] | Unknown:
        return self._known(self._namespaces, "Namespaces")

    def writers(self) -> Collection[str] | Unknown:
        return self._known(self._writers, "the list of writers")

    def _known(self, known: T | Unknown, what: str) -> T | Unknown:
        if known is UNKNOWN:
            self._missed[what] = None
        return known


def _reader(model: type[M]) -> Callable[[dict[str, Any]], M]:
    kind = BY_NAME[model.__name__]

    def compact(item: dict[str, Any]) -> M:
        metadata = item["metadata"]
        slim = {key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata}
        found = read(kind, {**item, "apiVersion": f"{kind.group}/{kind.version}", "kind": kind.name, "metadata": slim})
        if not isinstance(found, model):
            raise ValueError("it does not keep to the schema of this version")
        return found

    return compact


_read_quota: Final = _reader(VNPUQuota)


def _quota(item: dict[str, Any]) -> KnownQuota:
    used: Amounts | None = None
    value = mapping(item.get("status")).get("used")
    if isinstance(value, Mapping):
        try:
            used = Amounts.model_validate(value)
        except ValidationError:
            used = None
    return KnownQuota(_read_quota(item), used)


def _labels(item: dict[str, Any]) -> Labels:
    found: Iterable[tuple[Any, Any]] = mapping(item["metadata"].get("labels")).items()
    return {sys.intern(str(key)): sys.intern(str(value)) for key, value in found}


def _listed(item: dict[str, Any]) -> frozenset[str]:
    """The users whom the list names; read as the policy of components/only-git-writes reads it."""
    text = mapping(item.get("data")).get(_WRITERS_KEY)
    lines = (line.strip() for line in text.split("\n")) if isinstance(text, str) else ()
    return frozenset(sys.intern(line) for line in lines if line and not line.startswith("#"))


def _devices(item: dict[str, Any]) -> Devices | Unknown:
    """UNKNOWN until the node's binder has reported in full: no device was seen, which is not the same as none."""
    inventory = read_inventory(mapping(item.get("status")).get("inventory"))
    return inventory.devices if inventory is not None and inventory.ready else UNKNOWN
