"""The control plane that the cluster tests share: real, one per pytest process, ended with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.capture import CaptureManager
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from cli.cluster.kubectl import find_kubectl
from cli.cluster.run.control_plane import ControlPlane
from tests.builders.waiting import eventually
from tests.cluster.faults.tally import Tally

KUBECONFIG_VARIABLE = "NPUFLEET_TEST_KUBECONFIG"
ROOT = Path(__file__).parents[2]


# What takes a minute and more, the longest first: runs that wait for slow faults, and files.
LONGEST = (
    "-slow-",
    "test_refused_kinds.py",
    "test_commit_to_device.py",
    "test_drain.py",
    "test_node_policy_controller.py",
    "test_virtual_functions.py",
    "test_control_plane.py",
    "test_resource_slices.py",
    "test_demo.py",
)
FAULTS = "cluster/faults/"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Tally(), "npufleet-fault-tally")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no test process waits for it at the end; runs under faults last, many and short."""

    def rank(item: pytest.Item) -> int:
        found = next((number for number, name in enumerate(LONGEST) if name in item.nodeid), len(LONGEST))
        return found + (found == len(LONGEST) and FAULTS in item.nodeid)

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByFile(config, log)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """With several test processes a file belongs to one of them, for the sake of its fixtures and of what it does to
    its cluster; runs under faults stand alone and go wherever there is time.

    Not by marks of groups: pytest-xdist 3.8 writes them into what pytest 9.2 does not read any more, and is silent.
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if FAULTS in nodeid else nodeid.partition("::")[0]


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, API server, controller manager and scheduler with audit log; or the cluster of $NPUFLEET_TEST_KUBECONFIG
    (an administrator's; it has no audit log and is left running)."""
    directory = tmp_path_factory.mktemp("control-plane")
    given = os.environ.get(KUBECONFIG_VARIABLE)
    if given:
        yield ControlPlane.existing(Path(given).expanduser(), directory)
        return
    capture = cast(CaptureManager, request.config.pluginmanager.getplugin("capturemanager"))
    with capture.global_and_fixture_disabled():  # a first build takes minutes: show that it goes on
        plane = ControlPlane.start(directory, audit=True)
    with plane:
        yield plane
    shutil.rmtree(directory / "etcd", ignore_errors=True)  # 64 MB that nobody reads; pytest keeps the rest of the run


@pytest.fixture(scope="session")
def kubectl(control_plane: ControlPlane) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`kubectl("get", "nodes", "-o", "json").stdout`. As the administrator, or as whom `kubeconfig` names; `input` goes
    to stdin. A failure fails the test with kubectl's words, except with `check=False`."""
    program = str(find_kubectl())

    def run(
        *arguments: str,
        kubeconfig: Path | None = None,
        input: str | None = None,
        check: bool = True,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        config = kubeconfig or control_plane.admin_kubeconfig
        done = subprocess.run(
            [program, f"--kubeconfig={config}", *arguments],
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr.strip()}"
        return done

    return run


@pytest.fixture(scope="session")
def installed(kubectl: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """npufleet's API, identities and admission policies, as kustomize/base installs them, and in force: the API server
    learns of rights and policies a moment after it has stored them."""
    kubectl("apply", "--server-side", "--kustomize", str(ROOT / "kustomize/base"))
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    accounts = "system:serviceaccount:npufleet-system"

    def may(account: str, *what: str) -> bool:
        asked = ["auth", "can-i", *what, "--namespace=npufleet-system", f"--as={accounts}:{account}"]
        return kubectl(*asked, check=False).stdout.strip() == "yes"

    def is_refused(obj: Mapping[str, object]) -> bool:
        asked = ["create", "--dry-run=server", f"--as={accounts}:probe", "--as-group=system:masters", "-f", "-"]
        return "ValidatingAdmissionPolicy" in kubectl(*asked, input=json.dumps(obj), check=False).stderr

    metadata = {"name": "probe"}
    state: dict[str, object] = {"apiVersion": "npufleet.io/v1alpha1", "kind": "NPUNodeState", "metadata": metadata}
    lease: dict[str, object] = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    for account in ("npufleet-vfio-binder", "npufleet-node-policy"):
        eventually(
            partial(may, account, "patch", "npunodestates", "--subresource=status"), what=f"the rights of {account}"
        )
        eventually(partial(may, account, "create", "leases"), what=f"the rights of {account}")
    eventually(
        lambda: is_refused(state | {"spec": {"revision": "", "nodeUID": "u"}}), what="the policy on NPUNodeStates"
    )
    eventually(
        lambda: is_refused(lease | {"metadata": {"name": "other", "namespace": "npufleet-system"}}),
        what="the policy on Leases",
    )
