"""The namespaces of a node: what is seen inside, and that nothing of them is left, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.waiting import eventually
from tests.node_runtime.cgroups import read_hierarchies, sweep
from tests.node_runtime.errors import NodeRuntimeError
from tests.node_runtime.sandbox import Sandbox, View, tool
from tests.node_runtime.service import Service

BUSYBOX = Path(tool("busybox"))


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    (tmp_path / "disk").mkdir()
    (tmp_path / "boot_id").write_text("7f1c0f7e-3a52-4a0a-9d0b-6f3f6f1f9f11\n")
    view = View(
        "node-x", {"/var/lib/kubelet": tmp_path / "disk"}, {"/proc/sys/kernel/random/boot_id": tmp_path / "boot_id"}
    )
    made = Sandbox.start(tmp_path / "sandbox", view, busybox=BUSYBOX)
    yield made
    made.stop()


def cgroups(pid: int) -> list[Path]:
    """The directories of nodes that this process has started."""
    found = []
    for tree in read_hierarchies():
        found += [Path(place, name) for place, names, _ in os.walk(tree.mount_point) for name in names]
    return [path for path in found if path.name.startswith(f"npufleet-node-{pid}-")]


def test_inside_is_a_machine_of_its_own(sandbox: Sandbox, tmp_path: Path) -> None:
    assert sandbox.run(["hostname"]) == "node-x\n"
    assert sandbox.run(["cat", "/proc/sys/kernel/random/boot_id"]) == (tmp_path / "boot_id").read_text()
    devices = set(sandbox.run(["ls", "/dev"]).split())
    assert {"null", "kmsg", "pts", "shm"} <= devices
    assert not {name for name in devices if name.startswith(("sd", "vd", "nvme", "loop", "kvm", "vfio"))}
    interfaces = sandbox.run([str(BUSYBOX), "ip", "-o", "link"]).splitlines()
    assert [line.split(":")[1].strip() for line in interfaces] == ["lo", "cni0"]
    assert len(sandbox.run([str(BUSYBOX), "ps"]).splitlines()) <= 4
    assert set(sandbox.run(["cut", "-d:", "-f3", "/proc/self/cgroup"]).split()) == {"/"}


def test_disk_is_shared_and_the_rest_is_not(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.run(["sh", "-c", "echo kept >/var/lib/kubelet/file; echo gone >/var/lib/npufleet-e2e; echo gone >/run/e2e"])
    assert (tmp_path / "disk/file").read_text() == "kept\n"
    assert sandbox.path("/run/e2e").read_text() == "gone\n"
    assert not Path("/var/lib/npufleet-e2e").exists()
    assert not Path("/run/e2e").exists()


def test_commands_that_fail_or_hang_are_told(sandbox: Sandbox) -> None:
    with pytest.raises(NodeRuntimeError, match=r"code 3\).*because"):
        sandbox.run(["sh", "-c", "echo because >&2; exit 3"])
    with pytest.raises(NodeRuntimeError, match="did not end within 0 s"):
        sandbox.run(["sleep", "60"], seconds=0.3)


def test_services_are_signalled_themselves_and_end_with_the_sandbox(sandbox: Sandbox, tmp_path: Path) -> None:
    polite, stubborn = Service("polite", tmp_path / "polite.log"), Service("stubborn", tmp_path / "stubborn.log")
    polite.start(sandbox, ["sh", "-c", "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.05; done"])
    stubborn.start(sandbox, ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"])
    for service in (polite, stubborn):
        service.await_ready(lambda service=service: "up" in service.log.read_text(), seconds=10)  # type: ignore[misc]
    polite.stop()
    assert polite.log.read_text() == "up\ntold\n"
    with pytest.raises(NodeRuntimeError, match="polite does not run"):
        _ = polite.pid
    pid = stubborn.pid
    before = cgroups(os.getpid())  # of the run's other nodes, too
    own = {path for path in before if str(pid) in (path / "cgroup.procs").read_text().split()}
    sandbox.stop()
    eventually(lambda: not Path(f"/proc/{pid}").exists(), seconds=10, what="the service has ended")
    stubborn.forget()
    assert own
    assert set(cgroups(os.getpid())) == set(before) - own


def test_sandbox_ends_with_its_starter_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from tests.node_runtime.sandbox import Sandbox, View\n"
        "made = Sandbox.start(Path(sys.argv[1]), View('killed'), busybox=Path(sys.argv[2]))\n"
        "print(made.pid, flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(BUSYBOX)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    first = int(starter.stdout.readline())
    assert cgroups(starter.pid)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    eventually(lambda: not Path(f"/proc/{first}").exists(), seconds=10, what="the namespaces have ended")
    sweep(read_hierarchies())
    assert cgroups(starter.pid) == []


def test_view_that_cannot_be_made_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    before = cgroups(os.getpid())
    with pytest.raises(NodeRuntimeError, match=r"nowhere does not exist"):
        Sandbox.start(tmp_path, View("x", {"/var/lib/kubelet": tmp_path / "nowhere"}), busybox=BUSYBOX)
    with pytest.raises(NodeRuntimeError, match=r"were not made:(.|\n)*/no/busybox"):
        Sandbox.start(tmp_path, View("x"), busybox=Path("/no/busybox"))
    assert cgroups(os.getpid()) == before
