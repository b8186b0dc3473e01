"""What every run under faults shares: the controller's identity, and the runs without faults."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.run.control_plane import ControlPlane
from tests.builders.fault_proxy import Fault
from tests.cluster.faults.judge import Record
from tests.cluster.faults.references import References
from tests.cluster.faults.run import Run, perform
from tests.cluster.faults.scenarios import BY_NAME

# The runs empty their cluster and read its audit log: one that is given is not theirs to empty.
collect_ignore_glob = ["test_*.py"] if os.environ.get("NPUFLEET_TEST_KUBECONFIG") else []

Perform = Callable[..., Awaitable[Run]]
Reference = Callable[[str], Awaitable[Record]]


@pytest.fixture(scope="session")
def controller_kubeconfig(
    installed: None, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The controller's own ServiceAccount, never an administrator's."""
    out = tmp_path_factory.mktemp("faults") / "kubeconfig"
    return service_account_kubeconfig(control_plane, "npufleet-system", "npufleet-node-policy", out)


@pytest.fixture
def perform_run(control_plane: ControlPlane, controller_kubeconfig: Path, tmp_path: Path) -> Perform:
    """`await perform_run("create", faults, seed=…, wanted=…)`."""
    made = 0

    async def run(name: str, faults: tuple[Fault, ...] = (), **more: object) -> Run:
        nonlocal made
        made += 1
        directory = tmp_path / f"{name}-{made}"
        return await perform(control_plane, controller_kubeconfig, directory, BY_NAME[name], faults, **more)  # type: ignore[arg-type]

    return run


@pytest.fixture
def reference(perform_run: Perform, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The run of a scenario without faults."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-gw") else base
    references = References(shared / "without-faults")

    async def get(name: str) -> Record:
        async def make() -> Record:
            return (await perform_run(name)).record

        return await references.get(name, make)

    return get
