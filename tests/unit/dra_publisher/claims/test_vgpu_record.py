"""The record of a claim says which vGPU profile it was promised, over reboots and changes of what is offered."""

from dataclasses import replace

from crds.device_names import NamedKind, device_name
from dra_publisher.claims.allocation import AllocatedDevice, Allocation
from dra_publisher.claims.preparing import candidate, started
from node_host.evidence.checkpoint import Checkpoint, PreparedClaim, decode, encode
from node_host.evidence.prepared import Prepared
from tests.builders.claims_world import DRIVER, NODE, offer

FUNCTION = "0000:21:00.4"
NAME = device_name(NamedKind.VGPU, FUNCTION)
ALLOCATED = AllocatedDevice("gpu", DRIVER, NODE, NAME)
ALLOCATION = Allocation("0a", "team-a", "vm", "", (ALLOCATED,))


def prepared(profile: str, before: PreparedClaim | None = None) -> PreparedClaim:
    """The claim, prepared while its function is offered with a profile."""
    offered = replace(offer(FUNCTION), kind=NamedKind.VGPU, name=NAME, attributes={"profile": profile})
    found = candidate(ALLOCATION, ALLOCATED, offered, before)
    return started(ALLOCATION, [(found, ("/dev/vfio/30",))], driver=DRIVER, boot_id="boot", before=before)


def test_the_promised_profile_is_in_the_file_and_told_to_who_changes_functions() -> None:
    read = decode(encode(Checkpoint({"0a": prepared("L40S-24Q")})))
    assert Prepared(read).profile_of(FUNCTION) == "L40S-24Q"


def test_a_claim_keeps_what_it_was_promised_whatever_is_offered_under_the_name_since() -> None:
    before = prepared("L40S-24Q")
    assert candidate(ALLOCATION, ALLOCATED, None, before).wanted.profile == "L40S-24Q"
    assert prepared("L40S-12Q", before).devices[0].profile == "L40S-24Q"


def test_a_record_of_an_older_version_names_no_profile_and_is_read() -> None:
    claim = prepared("L40S-24Q")
    older = encode(Checkpoint({"0a": replace(claim, devices=(replace(claim.devices[0], profile=None),))}))
    assert b"profile" not in older
    assert Prepared(decode(older)).profile_of(FUNCTION) is None
