"""Checkpoints of the publisher on a host, for tests of those who heed them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from node_host.durable_file import write_durably
from node_host.evidence.checkpoint import (
    CHECKPOINT,
    Checkpoint,
    ClaimState,
    PreparedClaim,
    PreparedDevice,
    encode,
)
from node_host.host import Host

EARLIER = "0b5c8f6e-0f57-4b1e-9d5e-7a0c4f1b2d3e"
"""A boot that is over."""


def claim(
    shapes: Mapping[str, str], *, boot_id: str, name: str = "vm-npu", state: ClaimState = ClaimState.COMPLETED
) -> PreparedClaim:
    """A claim of namespace team-a that has the devices, by address, in these shapes."""
    devices = tuple(
        PreparedDevice(
            driver="npufleet.io",
            pool="node",
            device=f"vfio-{address}".replace(":", "-").replace(".", "-"),
            address=address,
            requests=("npu",),
            cdi_ids=(f"k8s.npufleet.io/claim={name}-{number}",),
            share_id=None,
            admin_access=False,
            shape=shape,
        )
        for number, (address, shape) in enumerate(shapes.items())
    )
    return PreparedClaim(f"uid-of-{name}", "team-a", name, boot_id, state, devices)


def write_checkpoint(
    host: Host, *claims: PreparedClaim, published: Mapping[str, str] | None = None, doubt: str | None = None
) -> None:
    """Put a checkpoint in the place of the one that is there."""
    content = Checkpoint({one.uid: one for one in claims}, dict(published or {}), doubt)
    write_durably(host.local(CHECKPOINT), encode(content))


def spoil_checkpoint(host: Host, data: bytes = b"{") -> None:
    """One that cannot be read."""
    write_durably(host.local(CHECKPOINT), data)


def shapes(addresses: Iterable[str], shape: str) -> dict[str, str]:
    """The same shape for all."""
    return dict.fromkeys(addresses, shape)
