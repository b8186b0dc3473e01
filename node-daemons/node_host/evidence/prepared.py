"""What the publisher's checkpoint says of devices now, in this boot. Pure but for ``read_prepared``.

A claim of this boot is a user of its devices: its pod may start any moment. One of another boot is none yet, but the
kubelet has it prepared again, as it was then, before its pod starts again.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from crds.models.node_state import DeviceUser, UseKind
from node_host.evidence.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint
from node_host.host import Host

_NAME: Final = 253
_TEXT: Final = 1024
# Of one that is being prepared as well: it is the same to whoever wants the device, and words that change are written.
_DETAIL: Final = "is prepared for a pod"


@dataclass(frozen=True, slots=True)
class Prepared:
    """The checkpoint; ``unreadable`` says why it, or all of it, is not known, or None."""

    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    unreadable: str | None = None

    @property
    def doubt(self) -> str | None:
        """Why any device may have been prepared for a pod, or None."""
        return (
            None if self.unreadable is None else f"which pods were prepared with it cannot be read: {self.unreadable}"
        )

    @property
    def addresses(self) -> frozenset[str]:
        """Devices that it names."""
        claimed = {device.address for claim in self.checkpoint.claims.values() for device in claim.devices}
        return frozenset(claimed | self.checkpoint.published.keys())

    def users(self, address: str, boot_id: str) -> tuple[DeviceUser, ...]:
        """Claims of this boot that have the device."""
        return tuple(
            DeviceUser(kind=UseKind.CLAIM, name=claim.title[:_NAME], detail=_DETAIL)
            for claim in self.checkpoint.claims_of(address)
            if any(claim.has(device, boot_id) for device in claim.devices if device.address == address)
        )

    def is_to_come(self, claim: str, address: str, boot_id: str) -> bool:
        """Whether a claim, as `namespace/name`, had the device before the last boot and was not prepared since.

        The kubelet remembers what it gave to pods over a boot, and says so before it has anything prepared again.
        """
        known = [
            one.has(device, boot_id)
            for one in self.checkpoint.claims_of(address)
            for device in one.devices
            if f"{one.namespace}/{one.name}" == claim and device.address == address
        ]
        return bool(known) and not any(known)

    def profile_of(self, address: str) -> str | None:
        """The vGPU profile that a claim has, or had, the device with; None where none has it."""
        found = (
            device.profile
            for claim in self.checkpoint.claims_of(address)
            for device in claim.devices
            if device.address == address and device.profile
        )
        return next(found, None)

    def awaited(self, address: str, boot_id: str, shapes: Collection[str]) -> str | None:
        """Which claims of other boots wait for the device in another shape than these, or None."""
        waiting = [
            claim.title
            for claim in self.checkpoint.claims_of(address)
            if any(
                device.address == address and device.shape not in shapes and not claim.has(device, boot_id)
                for device in claim.devices
            )
        ]
        if not waiting:
            return None
        text = f"{', '.join(waiting)} had it before the last boot, and is to get it again as it was then"
        return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"

    def was_offered_otherwise(self, address: str, shapes: Collection[str]) -> bool:
        """Whether pods could have it, as something else than one of these shapes."""
        shape = self.checkpoint.published.get(address)
        return shape is not None and shape not in shapes


def read_prepared(host: Host) -> Prepared:
    """The checkpoint of a host as evidence. Never raises."""
    found = read_checkpoint(host)
    if isinstance(found, str):
        return Prepared(unreadable=found)
    return Prepared(found, None if found.doubt is None else f"{CHECKPOINT}: {found.doubt}")
