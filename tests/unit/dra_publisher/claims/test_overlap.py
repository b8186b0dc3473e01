"""The overlap guard: the last line against double use, on records alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dra_publisher.claims.overlap import conflict
from node_host.evidence.checkpoint import Checkpoint, ClaimState, PreparedClaim, PreparedDevice

DEVICE = PreparedDevice(
    driver="npufleet.io",
    pool="node-atom",
    device="soft-0000-27-00-0",
    address="0000:27:00.0",
    requests=("npu",),
    cdi_ids=(),
    share_id=None,
    admin_access=False,
    shape="ab" * 32,
)
SHARE = replace(DEVICE, share_id="s-1", consumed={"memory": "8Gi", "cores": "50"})
CAPACITY = {"memory": "16Gi", "cores": "100"}


def held(*devices: PreparedDevice, state: ClaimState = ClaimState.COMPLETED, boot: str = "b") -> Checkpoint:
    claims = {
        f"u-{number}": PreparedClaim(f"u-{number}", "ns", f"c-{number}", boot, state, (device,))
        for number, device in enumerate(devices)
    }
    return Checkpoint(claims)


@pytest.mark.parametrize("state", list(ClaimState))
@pytest.mark.parametrize("boot", ["b", "another"])
def test_another_claim_has_it_whatever_its_state_and_boot(state: ClaimState, boot: str) -> None:
    checkpoint = held(DEVICE, state=state, boot=boot)
    assert conflict(checkpoint, "me", DEVICE) == "soft-0000-27-00-0 is prepared for claim ns/c-0 (UID u-0)"
    assert conflict(checkpoint, "u-0", DEVICE) is None, "it is its own"
    assert conflict(checkpoint, "me", replace(DEVICE, address="0000:28:00.0")) is None


def test_another_name_for_the_same_address_is_the_same_device() -> None:
    other = replace(DEVICE, device="vfio-0000-27-00-0", driver="npu.rebellions.ai")
    assert conflict(held(other), "me", DEVICE) is not None
    shared = replace(SHARE, device="vfio-0000-27-00-0")
    assert conflict(held(shared), "me", replace(SHARE, share_id="s-2")) is not None


def test_administration_is_in_nobodys_way() -> None:
    admin = replace(DEVICE, admin_access=True)
    assert conflict(held(DEVICE), "me", admin) is None
    assert conflict(held(admin), "me", DEVICE) is None
    assert conflict(held(admin, DEVICE), "me", DEVICE) is not None


def test_shares_fit_until_a_capacity_is_overdrawn() -> None:
    mine = replace(SHARE, share_id="s-9")
    assert conflict(held(SHARE), "me", mine, CAPACITY) is None
    assert conflict(held(SHARE), "me", SHARE, CAPACITY) is not None, "the same share"
    assert conflict(held(SHARE), "me", DEVICE, CAPACITY) is not None, "all of it"
    assert conflict(held(DEVICE), "me", mine, CAPACITY) is not None, "nothing is left"
    full = held(SHARE, replace(SHARE, share_id="s-2"))
    text = conflict(full, "me", mine, CAPACITY)
    assert text is not None and "has cores 100; 2 other shares take 100, which leaves too little for 50" in text
    assert conflict(full, "me", replace(mine, consumed={}), CAPACITY) is None
    assert conflict(held(SHARE), "me", replace(mine, consumed={"memory": "9Gi"}), CAPACITY) is not None
    assert conflict(full, "me", mine) is None, "no capacity is known of it"
