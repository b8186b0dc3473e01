"""What the kubelet's calls need of the rest of the publisher: claims prepared and taken back, and devices' health.

Shapes are those of the wire without its versions: the kubelet speaks v1 or v1beta1, what answers does not know which.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A ResourceClaim as the kubelet names it. When it is taken back, it may be gone from the API server."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AnsweredDevice:
    """A prepared device. ``requests`` hold no subrequest ("gpu", not "gpu/small"); empty: all requests of the claim.

    ``share_id`` is told to kubelets that speak v1 alone.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One device as it is now; ``healthy`` None: nobody can say. ``message`` is for people, cut at 1024 bytes."""

    pool: str
    device: str
    healthy: bool | None
    message: str = ""


class ClaimService(Protocol):
    """Preparing and taking back. Both may be called at any time, also for several drivers at once.

    A call that the kubelet gave up is worked off to its end all the same, and a repetition of it meanwhile joins it. An
    exception is told as the error of each claim of the call.
    """

    async def prepare(self, driver: str, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[AnsweredDevice, ...] | str]:
        """By UID: the devices, or why the claim was not prepared."""
        ...

    async def unprepare(self, driver: str, claims: Sequence[ClaimRef]) -> Mapping[str, str | None]:
        """By UID: None, or why the claim was not taken back. A claim that nobody knows has been taken back."""
        ...


class HealthSource(Protocol):
    """Where the health that the kubelet shows in pods comes from. It is asked in the event loop, and must not wait."""

    def devices(self, driver: str) -> tuple[DeviceHealth, ...]:
        """All devices of the driver that pods of this node may have."""
        ...

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the event loop whenever an answer of ``devices`` may have changed."""
        ...
