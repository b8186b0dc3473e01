"""Orders for the devices of one node, as small comparable values: the form in which the planner thinks.

A fleet has tens of thousands of them in memory at once, so they are slotted values and not models: the settings of a
mode are one canonical JSON text, with every effective value spelled out. Equal shapes need nothing done on the host.
"""

import hashlib
import json
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from crds.models.base import Model
from crds.models.modes import YAML_BLOCKS, Mode, OnRelease, settings_of
from crds.models.node_policy import DeviceRule, NodePolicySpec
from crds.models.node_state import Intent, NodeStateSpec, PolicyRollout, Removal
from crds.models.rollout import Drain, Rollout

REVISION_DIGITS: Final = 12

# Whom an order names that gives back a device which npufleet has changed and which no order names: not a policy's
# name that anybody would choose. It has limits of its own, the effective ones of a policy that says nothing.
ORPHANS: Final = "orphaned.npufleet.io"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a device becomes. `block` is the canonical JSON of the mode's settings, "" when the mode has none."""

    mode: Mode
    driver_name: str
    block: str

    @property
    def gives_functions(self) -> bool:
        """Virtual functions of the device go to VMs, and not the device itself."""
        return self.mode is Mode.VGPU or (self.mode is Mode.PASSTHROUGH and '"virtualFunctions":' in self.block)

    @property
    def binds_companions(self) -> bool:
        """The other devices of its IOMMU group go along with it."""
        return self.mode is Mode.PASSTHROUGH and '"companions":"Bind"' in self.block

    def describe(self) -> str:
        """For messages: the mode, with its settings where it has some."""
        return f"{self.mode} {self.block}" if self.block else str(self.mode)


@dataclass(frozen=True, slots=True)
class Identity:
    """What the device at an address must be: PCI ids, and the serial number where the device tells one."""

    vendor: str
    device: str
    serial: str | None


@dataclass(frozen=True, slots=True)
class Order:
    """One entry of `spec.devices`."""

    address: str
    identity: Identity
    shape: Shape
    intent: Intent
    on_release: OnRelease
    policy: str
    rule: str

    @property
    def applied_shape(self) -> Shape | None:
        """What the device becomes; None where it is given back, or left as it is."""
        return self.shape if self.intent is Intent.APPLY else None

    def held(self) -> "Order":
        """The same, to be left as it is."""
        return self if self.intent is Intent.HOLD else replace(self, intent=Intent.HOLD)

    def released(self, on_release: OnRelease) -> "Order":
        """The same, to be given back."""
        if self.intent is Intent.RELEASE and self.on_release is on_release:
            return self
        return replace(self, intent=Intent.RELEASE, on_release=on_release)


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """One entry of `spec.rollouts`: how fast a policy may change nodes. Durations in seconds.

    `removal`: what is remembered of the removal of a policy that is gone; None of any other.
    """

    policy: str
    max_unavailable: int | str = 1
    drain: Drain = Drain.NEVER
    drain_timeout_seconds: int = 600
    progress_deadline_seconds: int = 900
    removal: Removal | None = None

    @classmethod
    def of(cls, policy: str, rollout: Rollout) -> "RolloutLimits":
        return cls(
            policy,
            rollout.max_unavailable,
            rollout.drain,
            rollout.drain_timeout_seconds,
            rollout.progress_deadline_seconds,
            rollout.removal if isinstance(rollout, PolicyRollout) else None,
        )


@dataclass(frozen=True, slots=True)
class Orders:
    """All that the spec of one NPUNodeState says, save for the node's UID. `devices` are sorted by address."""

    devices: tuple[Order, ...] = ()
    limits: tuple[RolloutLimits, ...] = ()

    def by_address(self) -> dict[str, Order]:
        return {order.address: order for order in self.devices}

    def revision(self) -> str:
        """Hash of the orders: 12 hex digits, equal for equal orders, whatever the commit that they came from."""
        return hashlib.sha256(_canonical(self._content()).encode()).hexdigest()[:REVISION_DIGITS]

    def purpose(self, addresses: Collection[str] = ()) -> str:
        """Hash of what these devices become, or all: 12 hex digits, whoever decides it and however fast it goes."""
        meant = [
            [order.address, order.intent, order.shape.mode, order.shape.driver_name, order.shape.block]
            for order in self.devices
            if not addresses or order.address in addresses
        ]
        return hashlib.sha256(_canonical(meant).encode()).hexdigest()[:REVISION_DIGITS]

    def spec(self, node_uid: str) -> dict[str, Any]:
        """The spec of the NPUNodeState that gives these orders. A list that is empty is left out.

        Given and later emptied by server-side apply, a list that another operation has also written becomes null, and
        the API server refuses the object (seen on 1.37).
        """
        lists = {name: entries for name, entries in self._content().items() if entries}
        return {"revision": self.revision(), "nodeUID": node_uid, **lists}

    def _content(self) -> dict[str, Any]:
        return {
            "devices": [_entry(order) for order in self.devices],
            "rollouts": [
                {
                    "policy": limits.policy,
                    "maxUnavailable": limits.max_unavailable,
                    "drain": str(limits.drain),
                    "drainTimeoutSeconds": limits.drain_timeout_seconds,
                    "progressDeadlineSeconds": limits.progress_deadline_seconds,
                    **({"removal": str(limits.removal)} if limits.removal is not None else {}),
                }
                for limits in self.limits
            ],
        }


def orders_of(devices: Iterable[Order], limits: Iterable[RolloutLimits]) -> Orders:
    """Orders in their one order: devices by address, limits by policy."""
    return Orders(
        tuple(sorted(devices, key=lambda order: address_key(order.address))),
        tuple(sorted(limits, key=lambda limit: limit.policy)),
    )


def address_key(address: str) -> tuple[int, str]:
    """Sort key of a PCI address: by domain as a number, then by bus, device and function."""
    domain, _, rest = address.partition(":")
    return int(domain, 16), rest


def read_orders(spec: NodeStateSpec) -> Orders:
    """The orders in a spec as read from the API, in the same form as freshly compiled ones."""
    return orders_of(
        (
            Order(
                sys.intern(device.address),
                Identity(
                    sys.intern(device.identity.vendor), sys.intern(device.identity.device), device.identity.serial
                ),
                shape_of(device.mode, device.driver_name, settings_of(device)),
                device.intent,
                device.on_release,
                sys.intern(device.decided_by.policy),
                sys.intern(device.decided_by.rule),
            )
            for device in spec.devices
        ),
        (RolloutLimits.of(rollout.policy, rollout) for rollout in spec.rollouts),
    )


def shape_of_rule(spec: NodePolicySpec, rule: DeviceRule) -> Shape:
    """What a rule makes of the devices that it decides."""
    return shape_of(rule.mode, spec.driver_name, rule.settings)


def shape_of(mode: Mode, driver_name: str, block: Model | None) -> Shape:
    """A shape with every effective value spelled out, so that a value given and the same value left out are equal."""
    if mode is Mode.UNMANAGED:
        return Shape(mode, "", "")
    return Shape(mode, sys.intern(driver_name), "" if block is None else _block_text(block))


# A fleet has few different ones, and each is read again with every report of every node.
@lru_cache(maxsize=1024)
def _block_text(block: Model) -> str:
    return sys.intern(_canonical(_explicit(block)))


def _explicit(block: Model) -> Any:
    values = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    # An empty list is how a model says "absent": the API has no empty lists here.
    return {name: value for name, value in values.items() if value != []}


def _entry(order: Order) -> dict[str, Any]:
    identity = {"vendor": order.identity.vendor, "device": order.identity.device}
    if order.identity.serial is not None:
        identity["serial"] = order.identity.serial
    entry: dict[str, Any] = {
        "address": order.address,
        "identity": identity,
        "mode": str(order.shape.mode),
        "intent": str(order.intent),
        "driverName": order.shape.driver_name,
        "onRelease": str(order.on_release),
        "decidedBy": {"policy": order.policy, "rule": order.rule},
    }
    if order.shape.block:
        entry[YAML_BLOCKS[order.shape.mode]] = json.loads(order.shape.block)
    return entry


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
