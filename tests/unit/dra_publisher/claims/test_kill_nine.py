"""SIGKILL of real processes in the middle of a Prepare and an Unprepare, and the next process after each."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node_host.evidence.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint
from runtime.resources import RESOURCE_CLAIMS
from simulated_node.kernel import SimulatedKernel
from tests.builders.claims_world import CARD, COMPANION, DRIVER, machine, result, vfio
from tests.builders.fake_api import FakeApi

UID = "6f0f7d1e-0000-4000-8000-000000000001"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedKernel]:
    with machine(tmp_path_factory.mktemp("kill"), in_memory=False) as running:
        yield running


async def run(kernel: SimulatedKernel, server: FakeApi, act: str, step: int = -1) -> dict[str, Any] | None:
    """What the process answered; None when it was killed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.builders.dying_publisher"),
        *(str(kernel.root), str(server.kubeconfig()), act, "vm", UID, str(step)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[4],
    )
    async with asyncio.timeout(60):
        out, errors = await process.communicate()
    if process.returncode == -signal.SIGKILL:
        return None
    assert process.returncode == 0, errors.decode()
    found: dict[str, Any] = json.loads(out)
    return found


async def test_killed_in_the_middle_the_next_process_answers_the_same(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    # What stays, so that the steps of a call are the same each time.
    for path in (
        "/var/lib/npufleet/publisher",
        "/var/run/cdi",
        f"/var/lib/kubelet/plugins/{DRIVER}/dra-device-metadata",
    ):
        host.local(path).mkdir(parents=True)
    async with FakeApi() as server:
        results = [result(vfio(CARD), "a"), result(vfio(COMPANION), "b")]
        status = {"allocation": {"devices": {"results": results}}}
        body = {"metadata": {"name": "vm", "namespace": "team-a", "uid": UID}, "spec": {}, "status": status}
        server.objects.create(RESOURCE_CLAIMS, body, "team-a")

        whole = await run(kernel, server, "prepare")
        assert whole is not None and isinstance(whole["answer"], list)
        taken = await run(kernel, server, "unprepare")
        assert taken is not None and taken["answer"] == {UID: None}

        steps = whole["steps"]
        begun, done = steps.index(f"replace {Path(CHECKPOINT).name}.new"), len(steps) - 1
        for at in (begun + 1, done):
            assert await run(kernel, server, "prepare", at) is None, steps[at]
            record = read_checkpoint(host)
            assert isinstance(record, Checkpoint) and set(record.claims) == {UID}, steps[at]
            again = await run(kernel, server, "prepare")
            assert again is not None and again["answer"] == whole["answer"], steps[at]
            if at == done:
                middle = next(number for number, words in enumerate(taken["steps"]) if words.startswith("unlink"))
                assert await run(kernel, server, "unprepare", middle + 1) is None
            again = await run(kernel, server, "unprepare")
            assert again is not None and again["answer"] == {UID: None}
            record = read_checkpoint(host)
            assert isinstance(record, Checkpoint) and not record.claims
            assert not list(host.local("/var/run/cdi").iterdir())
