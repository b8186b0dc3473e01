"""A controller that is refused a kind in the middle of its work notices within its deadlines, which are minutes.

Apart from the other tests of the controller, so that its process need not wait for them: it does nothing but wait.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.run.control_plane import ControlPlane
from tests.builders.fault_proxy import FaultProxy
from tests.builders.node_policy_cluster import LEASE, ControllerProcess
from tests.builders.waiting import eventually

FEED = 'npufleet_feed_healthy{component="npufleet-node-policy",resource="nodes"}'


def test_kind_that_is_refused_ends_the_process_or_its_readiness(
    installed: None, control_plane: ControlPlane, tmp_path: Path
) -> None:
    kubeconfig = service_account_kubeconfig(
        control_plane, "npufleet-system", "npufleet-node-policy", tmp_path / "kubeconfig"
    )
    with ExitStack() as stack:
        stack.callback(control_plane.api().call, "DELETE", LEASE)
        nodes_refused = stack.enter_context(FaultProxy(kubeconfig, tmp_path / "one"))
        policies_refused = stack.enter_context(FaultProxy(kubeconfig, tmp_path / "two"))
        first = ControllerProcess(nodes_refused.kubeconfig, tmp_path / "first.log")
        stack.callback(first.kill)
        second = ControllerProcess(policies_refused.kubeconfig, tmp_path / "second.log")
        stack.callback(second.kill)
        eventually(lambda: first.is_ready() and second.is_ready())
        nodes_refused.refuse("nodes")
        policies_refused.refuse("npunodepolicies")
        eventually(lambda: not first.is_ready(), seconds=110, every=1.0)
        assert "grant list and watch on nodes" in first.get("/readyz")[1]
        assert first.get("/healthz")[0] == 200, "a restart would not cure it"
        eventually(lambda: first.value(FEED) == 0, seconds=40)
        eventually(lambda: second.process.poll() is not None or not second.is_ready(), seconds=60, every=1.0)
        nodes_refused.accept("nodes")
        eventually(first.is_ready, seconds=40)
