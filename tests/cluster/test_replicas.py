"""Two replicas of the node-policy controller: one writes, and its death is made good in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.run.control_plane import ControlPlane
from tests.builders.fault_proxy import FaultProxy
from tests.builders.node_policy_cluster import ControllerProcess, LiveFleet
from tests.builders.objects import node_policy
from tests.builders.waiting import eventually

POOL = {"replicas": "pool"}
TAKEOVER_SECONDS = 20.0


@pytest.fixture
def fleet(installed: None, control_plane: ControlPlane) -> Iterator[LiveFleet]:
    found = LiveFleet(control_plane.api())
    yield found
    found.clear()


def test_killed_leader_is_replaced_within_twenty_seconds_and_the_two_never_write_side_by_side(
    fleet: LiveFleet, control_plane: ControlPlane, tmp_path: Path
) -> None:
    for number in range(4):
        fleet.add_node(f"rep-{number}", 1, labels=POOL)
    fleet.apply(node_policy("rep", nodes=POOL))
    kubeconfig = service_account_kubeconfig(
        control_plane, "npufleet-system", "npufleet-node-policy", tmp_path / "kubeconfig"
    )
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy(kubeconfig, tmp_path / f"proxied-{n}")) for n in range(2)]
        first = ControllerProcess(proxies[0].kubeconfig, tmp_path / "first.log")
        stack.callback(first.kill)
        fleet.ready("rep")
        second = ControllerProcess(proxies[1].kubeconfig, tmp_path / "second.log")
        stack.callback(second.kill)
        eventually(second.is_ready)
        fleet.silent = set(fleet.cards)
        fleet.apply(node_policy("rep", nodes=POOL, mode="Container", rollout={"maxUnavailable": 1}))
        fleet.until(
            lambda: any(order["mode"] == "Container" for n in fleet.cards for order in fleet.orders(n).values())
        )
        first.kill()  # in the middle of the change, its Lease still running
        killed = time.monotonic()
        fleet.silent = set()
        assert proxies[1].writes == []
        fleet.until(lambda: proxies[1].writes, seconds=TAKEOVER_SECONDS + 10, what="the second one writes")
        assert time.monotonic() - killed < TAKEOVER_SECONDS
        count = len(proxies[0].writes)
        fleet.ready("rep", seconds=60)
        assert len(proxies[0].writes) == count
        generations = {fleet.state(name)["metadata"]["generation"] for name in fleet.cards}
        assert len(generations) == 1, "no order was given twice"
