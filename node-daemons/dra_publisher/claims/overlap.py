"""The last line against double use: whether a device may go to a claim, seen what others have of it. Pure."""

from collections.abc import Iterator, Mapping
from fractions import Fraction

from crds.models.quantity import parse_quantity
from node_host.evidence.checkpoint import Checkpoint, PreparedClaim, PreparedDevice


def conflict(
    checkpoint: Checkpoint, uid: str, device: PreparedDevice, capacity: Mapping[str, str] | None = None
) -> str | None:
    """Why the device cannot go to claim ``uid`` beside what other claims have, or None.

    Access for administration takes nothing from anybody. Shares of one device with different ids fit beside each other
    as long as they do not take more than its ``capacity`` (quantities by name).
    """
    if device.admin_access:
        return None
    shares: list[PreparedDevice] = []
    for claim, other in _others(checkpoint, uid, device.address):
        if not _are_shares(device, other):
            return f"{device.device} is prepared for {claim.title} (UID {claim.uid})"
        shares.append(other)
    return _overdrawn(device, shares, capacity or {}) if shares else None


def _others(checkpoint: Checkpoint, uid: str, address: str) -> Iterator[tuple[PreparedClaim, PreparedDevice]]:
    for claim in checkpoint.claims_of(address):
        if claim.uid == uid:
            continue
        for device in claim.devices:
            if device.address == address and not device.admin_access:
                yield claim, device


def _are_shares(one: PreparedDevice, other: PreparedDevice) -> bool:
    is_same = (one.driver, one.pool, one.device) == (other.driver, other.pool, other.device)
    return is_same and one.share_id is not None and other.share_id is not None and one.share_id != other.share_id


def _overdrawn(device: PreparedDevice, shares: list[PreparedDevice], capacity: Mapping[str, str]) -> str | None:
    for name, whole in sorted(capacity.items()):
        taken = sum((_amount(share.consumed.get(name)) for share in shares), Fraction(0))
        wanted = _amount(device.consumed.get(name))
        if taken + wanted > _amount(whole):
            return (
                f"{device.device} has {name} {whole}; {len(shares)} other "
                f"{'share takes' if len(shares) == 1 else 'shares take'} {taken}, which leaves too little for {wanted}"
            )
    return None


def _amount(quantity: str | None) -> Fraction:
    if quantity is None:
        return Fraction(0)
    try:
        return parse_quantity(quantity)
    except ValueError:
        return Fraction(0)
