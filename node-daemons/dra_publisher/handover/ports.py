"""What the steps of a hand-over need of the rest of the publisher: slices, the checkpoint, and claims in the API."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from crds.models.node_state import DesiredDevice
from dra_publisher.offers.offer import Offer
from node_host.view import HostView


@dataclass(frozen=True, slots=True)
class Allocation:
    """A device that a claim is allocated to; ``claim`` is the claim in messages."""

    driver: str
    device: str
    claim: str


class PublishError(Exception):
    """Slices, claims or the checkpoint could not be read or written: what is in them now is not known."""


class Slices(Protocol):
    """The slices of this node's pools."""

    async def publish(self, offers: Collection[Offer]) -> None:
        """Make the slices hold these devices and no others. Raises PublishError, with some of it done or nothing."""
        ...


class Ledger(Protocol):
    """The checkpoint: which claims are prepared, and which devices pods could have."""

    def doubt(self) -> str | None:
        """Why prepared claims may be missing in it, or None."""
        ...

    def published(self) -> Mapping[str, str]:
        """Devices that pods could have, in whatever boot, with the digest of their shape."""
        ...

    def holders(self, address: str) -> tuple[Allocation, ...]:
        """The claims that were prepared with the device, in whatever boot."""
        ...

    def drivers(self) -> frozenset[str] | None:
        """Driver names that claims were prepared for, through which the kubelet takes them back; None: not known."""
        ...

    async def note(self, shapes: Mapping[str, str]) -> None:
        """Add devices to those that pods could have; on disk when it returns. Raises PublishError."""
        ...

    async def forget(self, addresses: Collection[str]) -> None:
        """Take devices away from them. Raises PublishError."""
        ...

    def exclusive(self) -> AbstractAsyncContextManager[object]:
        """While it is held no claim is in the middle of being prepared, and what `holders` says is current."""
        ...


Claimed = Callable[[], Awaitable[Mapping[str, tuple[Allocation, ...]]]]
"""Which devices of this node claims are allocated to, by address; a quorum read. Raises PublishError."""

Build = Callable[[DesiredDevice, str, HostView], Awaitable[Offer | str]]
"""The device as the host has it, for this order; or why it cannot be published."""

Reread = Callable[[HostView, Collection[str]], Awaitable[HostView]]
"""The same view with these devices, the groups, the tokens and the note read anew."""
