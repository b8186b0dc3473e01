"""The program itself: what it says of itself, one look, and the plan of one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dra_publisher.main import main
from node_host.acting.locks import Locks
from runtime.resources import NODES, NPU_NODE_STATES
from simulated_node.kernel import SimulatedKernel
from tests.builders.binder import NODE_UID, NPU, TWIN, host, npu, order
from tests.builders.slice_server import SliceServer

NODE = "bench"


class Scene:
    """A host, and an API server where the binder has said that both devices are ready for containers."""

    def __init__(self, kernel: SimulatedKernel, server: SliceServer) -> None:
        self.kernel = kernel
        self.server = server
        server.objects.create(NODES, {"metadata": {"name": NODE, "uid": NODE_UID}})
        devices = [order(mode="Container"), order(TWIN, mode="Container")]
        content = {"revision": "5d0f", "nodeUID": NODE_UID, "devices": devices}
        server.objects.create(NPU_NODE_STATES, {"metadata": {"name": NODE}, "spec": content})
        said = [{"address": one, "state": "Ready", "reason": "NativeDriver"} for one in (NPU, TWIN)]
        bindings = {"observedGeneration": 1, "bootID": kernel.boot_id, "devices": said}
        server.objects.edit(NPU_NODE_STATES, NODE, status={"bindings": bindings})

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "dra_publisher.main", "--node", NODE, "--host-root", str(self.kernel.root)]
        command += ["--kubeconfig", str(self.server.kubeconfig()), *arguments]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, errors = await asyncio.wait_for(process.communicate(), 30)
        return process.returncode or 0, out.decode(), errors.decode()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    with SimulatedKernel(tmp_path / "root", host(npu(), npu(TWIN, 21))) as kernel:
        async with SliceServer() as server:
            yield Scene(kernel, server)


async def test_the_plan_is_printed_then_done_once_and_then_there_is_nothing_to_do(scene: Scene) -> None:
    code, out, errors = await scene.run("--dry-run")
    assert (code, scene.server.writes()) == (0, []), errors
    assert "Plan (nothing is written):" in out
    assert f"{NPU}: is to be published, as npu of npufleet.io" in out
    assert not (scene.kernel.root / "run/npufleet").exists()
    code, out, errors = await scene.run("--once")
    assert code == 0, errors
    assert f"{TWIN}  Ready  Published" in out
    assert len(scene.server.slices()) == 1
    code, out, _ = await scene.run("--dry-run")
    assert (code, f"{NPU}: stays published" in out) == (0, True)


async def test_the_plan_tells_of_each_taint_and_of_other_plugins(scene: Scene) -> None:
    scene.kernel.open_device("/dev/rbln0", pid=77, comm="train")
    code, out, errors = await scene.run("--dry-run")
    assert code == 0, errors
    lines = out.splitlines()
    place = lines.index(f"  {NPU}: is to be published, as npu of npufleet.io")
    assert lines[place + 1].startswith("    with taint npufleet.io/in-use=UsedOutside: in use by train")
    assert f"  {TWIN}: is to be published, as npu of npufleet.io" in lines
    assert out.count("with taint") == 1
    scene.server.objects.edit(NODES, NODE, status={"allocatable": {"rebellions.ai/ATOM": "2"}})
    code, out, errors = await scene.run("--dry-run")
    assert code == 0, errors
    assert f"  {NPU}: is left to another plugin: the node advertises rebellions.ai/ATOM" in out
    assert "is to be published" not in out


async def test_one_look_is_not_made_beside_a_publisher_that_is_at_work(scene: Scene) -> None:
    with Locks(scene.kernel.host(), ["publisher"], owner="another one"):
        code, out, errors = await scene.run("--once")
    assert (code, out) == (3, "")
    assert "another one" in errors
    assert scene.server.writes() == []


async def test_held_orders_are_a_finding(scene: Scene) -> None:
    scene.server.objects.delete(NPU_NODE_STATES, NODE)
    code, out, _ = await scene.run("--dry-run")
    assert code == 1
    assert "Held: there is no NPUNodeState for this node" in out


def test_the_help_teaches_what_the_program_does_and_never_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for word in ("It never writes to a device", "--dry-run", "--pod-uid", "exit codes", "checkpoint.json"):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--node NAME is needed"),
        (["--node", "a", "--host-root", "/nowhere"], "--host-root /nowhere is no directory"),
        (["--node", "a", "--resync-seconds", "0"], "is not a number of seconds from 1 to 86400"),
    ],
)
def test_wrong_usage_names_the_argument(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert text in capsys.readouterr().err
