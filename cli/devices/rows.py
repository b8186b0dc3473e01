"""What is shown: one row per device, and notes on nodes. Where the rows come from is nothing to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Offer:
    """A device as it stands in a ResourceSlice; `driver` and `name` are "" where only the host tells that it does.

    `taints` as `key=value`; any keeps new users away.
    """

    driver: str
    name: str
    taints: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"driver": self.driver, "device": self.name, "taints": list(self.taints)}


@dataclass(frozen=True, slots=True)
class PodName:
    """Who a claim is for: a pod, with the VM in it if there is one; or `other`, what else has reserved the claim."""

    namespace: str
    name: str
    vm: str = ""
    other: str = ""

    def __str__(self) -> str:
        if self.other:
            return f"{self.other} {self.namespace}/{self.name}"
        return f"VM {self.namespace}/{self.vm} (pod {self.name})" if self.vm else f"{self.namespace}/{self.name}"

    def to_json(self) -> dict[str, Any]:
        found = {"namespace": self.namespace, "name": self.name}
        return found | {key: text for key, text in (("vm", self.vm), ("resource", self.other)) if text}


@dataclass(frozen=True, slots=True)
class Allocation:
    """A claim that has the device, and the pods that it is reserved for; `detail` says what else is known of it."""

    driver: str
    name: str
    namespace: str
    claim: str
    pods: tuple[PodName, ...] = ()
    detail: str = ""

    def __str__(self) -> str:
        claim = f"claim {self.namespace}/{self.claim}"
        told = f"{', '.join(map(str, self.pods))} ({claim})" if self.pods else claim
        return f"{told}, {self.detail}" if self.detail else told

    def to_json(self) -> dict[str, Any]:
        return {
            "driver": self.driver,
            "device": self.name,
            "claim": {"namespace": self.namespace, "name": self.claim},
            "pods": [pod.to_json() for pod in self.pods],
        } | ({"detail": self.detail} if self.detail else {})


@dataclass(frozen=True, slots=True)
class Why:
    """Why nobody new gets a device: one stable word, and the same for people."""

    reason: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


@dataclass(frozen=True, slots=True)
class Row:
    """One device. `offers` and `allocations` are None where they cannot be known; `why` None: anybody can get it.

    `mode`, `intent`, `driver_name`, `policy` and `rule` are those of its orders, "" where it has none.
    """

    node: str
    address: str
    vendor: str = ""
    device: str = ""
    product: str = ""
    driver: str = ""
    iommu_group: int | None = None
    numa_node: int | None = None
    mode: str = ""
    intent: str = ""
    driver_name: str = ""
    policy: str = ""
    rule: str = ""
    offers: tuple[Offer, ...] | None = ()
    allocations: tuple[Allocation, ...] | None = ()
    used_by: tuple[str, ...] = ()
    why: Why | None = None

    @property
    def kind(self) -> str:
        """The product's name, or the ids of a device that has none."""
        return self.product or ":".join(filter(None, (self.vendor, self.device)))

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "address": self.address,
            "vendor": self.vendor,
            "device": self.device,
            "product": self.product,
            "driver": self.driver,
            "iommuGroup": self.iommu_group,
            "numaNode": self.numa_node,
            "mode": self.mode,
            "intent": self.intent,
            "driverName": self.driver_name,
            "policy": self.policy,
            "rule": self.rule,
            "offered": None if self.offers is None else [offer.to_json() for offer in self.offers],
            "allocated": None if self.allocations is None else [found.to_json() for found in self.allocations],
            "usedBy": list(self.used_by),
            "reason": self.why.reason if self.why else "",
            "message": self.why.message if self.why else "",
        }


@dataclass(frozen=True, slots=True)
class Note:
    """Something to know of a node (of all, without one) before its rows are believed."""

    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.node}: {self.text}" if self.node else self.text


@dataclass(frozen=True, slots=True)
class Listing:
    """All that is shown, sorted by node and address."""

    rows: tuple[Row, ...]
    notes: tuple[Note, ...] = ()

    def to_json(self) -> dict[str, Any]:
        notes = [{"node": note.node, "message": note.text} for note in self.notes]
        return {"devices": [row.to_json() for row in self.rows], "notes": notes}


def sorted_listing(rows: Iterable[Row], notes: Iterable[Note]) -> Listing:
    """Rows by node and address, notes by node; addresses of any width sort as numbers."""
    return Listing(
        tuple(sorted(rows, key=lambda row: (row.node, _place(row.address)))),
        tuple(sorted(notes, key=lambda note: (note.node, note.text))),
    )


def _place(address: str) -> tuple[int, str]:
    return len(address), address
