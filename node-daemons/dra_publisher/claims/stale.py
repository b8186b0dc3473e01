"""Entries of the record whose claim is gone: found by asking for each, and dropped when nobody has the device.

The kubelet takes claims back by itself; what it has forgotten (its state was lost, a node was cut off) would hold a
device for ever. But a claim's object can go before its container does. So in the boot in which a claim was prepared it
is dropped only after it has been gone for a while, and nobody is seen to use its devices.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dra_publisher.claims.allocation import AllocationError, devices_in_pool
from node_host.evidence.checkpoint import PreparedClaim

GRACE_SECONDS: Final = 60.0


def gone(entry: PreparedClaim, claim: Mapping[str, Any] | None) -> str | None:
    """Why the recorded claim holds its devices no more, or None; ``claim`` is its object, None when there is none.

    Pure. What cannot be understood of the object is no reason.
    """
    if claim is None:
        return "it is deleted"
    metadata = claim.get("metadata")
    if not isinstance(metadata, Mapping):
        return None
    if metadata.get("uid") != entry.uid:
        return "it was deleted and made anew"
    try:
        found = {
            device.key
            for pool in {one.pool for one in entry.devices}
            for device in devices_in_pool(claim, drivers={one.driver for one in entry.devices}, pool=pool)
        }
    except AllocationError:
        return None
    held = {(one.driver, one.pool, one.device, one.share_id) for one in entry.devices}
    return None if held <= found else "devices that it was prepared with are no longer allocated to it"


@dataclass
class Gone:
    """Since when claims have been seen to be gone, by UID, and as what they were recorded then."""

    since: dict[str, tuple[float, PreparedClaim]] = field(default_factory=dict)

    def due(
        self, seen: Mapping[str, PreparedClaim], present: Iterable[str], now: float, boot_id: str
    ) -> tuple[PreparedClaim, ...]:
        """Those of ``seen`` (gone at this look, by UID) that may be dropped now; ``present`` are found again."""
        for uid in present:
            self.since.pop(uid, None)
        for uid, entry in seen.items():
            if self.since.get(uid, (0.0, None))[1] != entry:
                self.since[uid] = (now, entry)
        return tuple(
            entry
            for uid, entry in sorted(seen.items())
            if entry.boot_id != boot_id or now - self.since[uid][0] >= GRACE_SECONDS
        )

    def forget(self, uid: str) -> None:
        """It was dropped."""
        self.since.pop(uid, None)

    def keep(self, recorded: Collection[str]) -> None:
        """Forget those that are in the record no more: the kubelet has taken them back."""
        self.since = {uid: found for uid, found in self.since.items() if uid in recorded}
