"""Each component can do its own part under its own ServiceAccount, and nothing of another's."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.run.control_plane import ControlPlane
from runtime.lease import daemon_lease_name
from tests.builders.waiting import eventually

NAMESPACE = "npufleet-system"
BINDER = "npufleet-vfio-binder"
CONTROLLER = "npufleet-node-policy"
NODE, OTHER = "identity-a", "identity-b"
Kubectl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def nodes(installed: None, kubectl: Kubectl) -> None:
    """Two Nodes with their states."""
    for name in (NODE, OTHER):
        kubectl(
            "apply",
            "--server-side",
            "-f",
            "-",
            input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}),
        )
        kubectl("apply", "--server-side", "-f", "-", input=json.dumps(state(name)))


def state(name: str, **status: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"apiVersion": "npufleet.io/v1alpha1", "kind": "NPUNodeState", "metadata": {"name": name}}
    return body | ({"status": status} if status else {"spec": {"revision": "", "nodeUID": "u", "devices": []}})


@pytest.fixture(scope="module")
def binder(nodes: None, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("binder") / "kubeconfig"
    return service_account_kubeconfig(control_plane, NAMESPACE, BINDER, out, node=NODE)


@pytest.fixture(scope="module")
def controller(nodes: None, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("controller") / "kubeconfig"
    return service_account_kubeconfig(control_plane, NAMESPACE, CONTROLLER, out)


@pytest.fixture
def report(kubectl: Kubectl) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Server-side apply of a status under a kubeconfig."""

    def apply(name: str, kubeconfig: Path, manager: str, **status: Any) -> subprocess.CompletedProcess[str]:
        command = ["apply", "--server-side", "--subresource=status", f"--field-manager={manager}", "-f", "-"]
        return kubectl(*command, input=json.dumps(state(name, **status)), kubeconfig=kubeconfig, check=False)

    return apply


INVENTORY = {"observedGeneration": 1, "bootID": "b", "devices": [], "conditions": []}
ROLLOUT = {"admitted": "Admitted"}


def test_binder_reports_its_own_subtrees_of_its_own_node(report: Any, binder: Path) -> None:
    done = report(NODE, binder, BINDER, inventory=INVENTORY, bindings=INVENTORY)
    assert done.returncode == 0, done.stderr


def test_binder_is_refused_on_another_node(report: Any, binder: Path) -> None:
    done = report(OTHER, binder, BINDER, inventory=INVENTORY)
    assert done.returncode != 0
    assert f"bound to node {NODE}, not to {OTHER}" in done.stderr


def test_binder_is_refused_in_the_subtree_of_another(report: Any, binder: Path) -> None:
    done = report(NODE, binder, BINDER, inventory=INVENTORY, rollout=ROLLOUT)
    assert done.returncode != 0
    assert "status.rollout is written by npufleet-node-policy" in done.stderr


def test_binder_cannot_write_orders(kubectl: Kubectl, binder: Path) -> None:
    done = kubectl(
        "patch", "npunodestate", NODE, "--type=merge", "-p", '{"spec":{"revision":"0"}}', kubeconfig=binder, check=False
    )
    assert done.returncode != 0
    assert "cannot patch" in done.stderr


def test_orders_by_a_daemon_are_refused_even_where_rbac_is_too_wide(kubectl: Kubectl, binder: Path) -> None:
    kubectl(
        "create",
        "clusterrolebinding",
        "too-wide",
        "--clusterrole=cluster-admin",
        f"--serviceaccount={NAMESPACE}:{BINDER}",
    )
    try:
        eventually(lambda: can_i(kubectl, binder, "delete", "npunodestates"))
        patch = ["patch", "npunodestate", NODE, "--type=merge", "-p", '{"spec":{"revision":"0"}}']
        done = kubectl(*patch, kubeconfig=binder, check=False)
        gone = kubectl("delete", "npunodestate", OTHER, kubeconfig=binder, check=False)
    finally:
        kubectl("delete", "clusterrolebinding", "too-wide")
    assert "orders are written by npufleet-node-policy" in done.stderr
    assert gone.returncode != 0
    assert "may only report" in gone.stderr


def test_token_that_is_bound_to_no_node_is_refused(
    report: Any, control_plane: ControlPlane, nodes: None, tmp_path: Path
) -> None:
    unbound = service_account_kubeconfig(control_plane, NAMESPACE, BINDER, tmp_path / "kubeconfig")
    done = report(NODE, unbound, BINDER, inventory=INVENTORY)
    assert done.returncode != 0
    assert "bound to no node or pod" in done.stderr


def test_controller_writes_orders_and_rollout_but_no_report(report: Any, kubectl: Kubectl, controller: Path) -> None:
    apply = ["apply", "--server-side", "--force-conflicts", f"--field-manager={CONTROLLER}", "-f", "-"]
    kubectl(*apply, input=json.dumps(state(NODE)), kubeconfig=controller)
    assert report(NODE, controller, CONTROLLER, rollout=ROLLOUT).returncode == 0
    done = report(NODE, controller, CONTROLLER, rollout=ROLLOUT, telemetry=INVENTORY)
    assert done.returncode != 0
    assert "status.telemetry is written by npufleet-ebpf-exporter" in done.stderr


def can_i(kubectl: Kubectl, identity: Path, verb: str, resource: str) -> bool:
    """`resource` may be one with a subresource, as RBAC spells it."""
    resource, _, part = resource.partition("/")
    asked = ["auth", "can-i", verb, resource, "--all-namespaces", *([f"--subresource={part}"] if part else [])]
    answer = kubectl(*asked, kubeconfig=identity, check=False).stdout.strip()
    assert answer in {"yes", "no"}
    return answer == "yes"


def lease(name: str, holder: str) -> str:
    metadata = {"name": name, "namespace": NAMESPACE}
    return json.dumps(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {"holderIdentity": holder},
        }
    )


def test_binder_has_its_own_lease_and_no_other(kubectl: Kubectl, binder: Path) -> None:
    kubectl("create", "-f", "-", input=lease(f"{BINDER}.{NODE}", NODE), kubeconfig=binder)
    refused = {
        f"{BINDER}.{OTHER}": (NODE, f"has the Lease {BINDER}.{NODE} and no other"),
        CONTROLLER: (NODE, f"has the Lease {BINDER}.{NODE} and no other"),
    }
    for name, (holder, message) in refused.items():
        done = kubectl("create", "-f", "-", input=lease(name, holder), kubeconfig=binder, check=False)
        assert done.returncode != 0
        assert message in done.stderr
    done = kubectl("replace", "-f", "-", input=lease(f"{BINDER}.{NODE}", OTHER), kubeconfig=binder, check=False)
    assert "held by its node" in done.stderr


def test_a_lease_whose_name_had_to_be_cut_is_still_of_its_node(
    kubectl: Kubectl, control_plane: ControlPlane, nodes: None, tmp_path: Path
) -> None:
    name = ".".join(["n" * 60] * 4)
    kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))
    try:
        daemon = service_account_kubeconfig(control_plane, NAMESPACE, BINDER, tmp_path / "long", node=name)
        own = daemon_lease_name(BINDER, name)
        assert len(own) == 253
        kubectl("create", "-f", "-", input=lease(own, name), kubeconfig=daemon)
        for other in (f"{BINDER}.{NODE}", own[:-1], own[:-11], f"{own[:205]}-{own[-10:]}x", f"{own[:210]}x{own[-11:]}"):
            done = kubectl("create", "-f", "-", input=lease(other, name), kubeconfig=daemon, check=False)
            assert "and no other" in done.stderr, other
        kubectl("delete", "lease", own, f"--namespace={NAMESPACE}")
    finally:
        kubectl("delete", "node", name)


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        ("list", "resourceclaims", True),
        ("update", "resourceclaims", False),
        ("get", "pods", True),
        ("list", "pods", True),
        ("delete", "pods", False),
        ("patch", "pods", False),
        ("create", "pods/eviction", True),
        ("patch", "nodes", True),
        ("update", "nodes", False),
        ("delete", "nodes", False),
    ],
)
def test_controller_may_drain_nodes_by_eviction_only(
    kubectl: Kubectl, controller: Path, verb: str, resource: str, *, allowed: bool
) -> None:
    assert can_i(kubectl, controller, verb, resource) is allowed


def test_binder_drains_nothing(kubectl: Kubectl, binder: Path) -> None:
    assert not can_i(kubectl, binder, "patch", "nodes")
    assert not can_i(kubectl, binder, "create", "pods/eviction")


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("get", "secrets"),
        ("create", "pods"),
        ("delete", "pods"),
        ("patch", "nodes/status"),
        ("update", "npunodepolicies"),
        ("patch", "npunodepolicies"),
    ],
)
def test_rights_end_where_the_job_ends(
    kubectl: Kubectl, binder: Path, controller: Path, verb: str, resource: str
) -> None:
    for identity in (binder, controller):
        assert not can_i(kubectl, identity, verb, resource)
