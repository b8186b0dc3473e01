"""What the publisher tells in the status of claims, under its own identity on a real API server."""

from collections.abc import Iterator
from typing import Any

import pytest

from cli.cluster.run.control_plane import ControlPlane
from dra_publisher.claims.status import ClaimStatuses, is_told
from node_host.evidence.checkpoint import ClaimState, PreparedClaim, PreparedDevice
from runtime.api import Api
from tests.builders.live_slices import PUBLISHER, SliceStage

HERE, THERE = "node-claims", "node-other-claims"
DRIVERS = ("npufleet.io", "npu.rebellions.ai")
DEVICES = ("vfio-0000-21-00-0", "vfio-0000-22-00-0")
Object = dict[str, Any]


@pytest.fixture(scope="module")
def stage(
    installed: None, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SliceStage]:
    made = SliceStage(control_plane, tmp_path_factory.mktemp("publishers"))
    try:
        for name in (HERE, THERE):
            made.add_node(name)
        yield made
    finally:
        made.end()


def allocated(stage: SliceStage, name: str, node: str) -> PreparedClaim:
    """A claim that has a device of each driver name on the node, as its record says."""
    path = f"/apis/resource.k8s.io/v1/namespaces/{stage.namespace}/resourceclaims"
    requests = [{"name": f"r{number}", "exactly": {"deviceClassName": "npufleet.io"}} for number in range(2)]
    claim = stage.api.call("POST", path, {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})
    results = [
        {"request": f"r{number}", "driver": driver, "pool": node, "device": DEVICES[number]}
        for number, driver in enumerate(DRIVERS)
    ]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    stage.api.call("PUT", f"{path}/{name}/status", {**claim, "status": {"allocation": allocation}})
    devices = tuple(
        PreparedDevice(driver, node, DEVICES[number], f"0000:2{number + 1}:00.0", ("r",), (), None, False, "0" * 64)
        for number, driver in enumerate(DRIVERS)
    )
    return PreparedClaim(claim["metadata"]["uid"], stage.namespace, name, "b", ClaimState.COMPLETED, devices)


def told(stage: SliceStage, claim: PreparedClaim) -> Object:
    path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
    found: Object = stage.api.call("GET", path)
    return found


async def test_the_publisher_tells_of_claims_of_its_node_and_of_no_other(stage: SliceStage) -> None:
    mine, other = allocated(stage, "mine", HERE), allocated(stage, "other", THERE)
    async with Api.connect(kubeconfig=stage.kubeconfig(HERE), component=PUBLISHER) as api:
        statuses = ClaimStatuses(api, PUBLISHER)
        for claim in (mine, other):
            assert not is_told(claim, told(stage, claim))
            statuses.tell(claim)
        await statuses.write_all()
    assert is_told(mine, told(stage, mine))
    devices = told(stage, mine)["status"]["devices"]
    assert [(one["driver"], one["device"], one["conditions"][0]["reason"]) for one in devices] == [
        (driver, device, "Prepared") for driver, device in zip(DRIVERS, DEVICES, strict=True)
    ]
    assert "devices" not in told(stage, other)["status"], "the API server keeps a publisher to its own node"
