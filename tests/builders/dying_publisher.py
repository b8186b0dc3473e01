"""A process that prepares or takes back one claim, and is killed by SIGKILL before a step of it.

    python -m tests.builders.dying_publisher HOST_ROOT KUBECONFIG prepare|unprepare NAME UID STEP

Prints the answer as JSON when it comes to its end; STEP -1: it does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from dra_publisher.checkpoint.store import CheckpointStore
from dra_publisher.claims.claims import Claims
from dra_publisher.kubelet.service import ClaimRef
from node_host.boot import read_boot_id
from node_host.host.kernel_files import KernelFiles
from runtime.api import Api
from tests.builders.claims_world import ALL_VFIO, DRIVER, NODE, offer
from tests.builders.deaths import Deaths


async def work(root: Path, kubeconfig: Path, act: str, ref: ClaimRef, deaths: Deaths) -> object:
    host = KernelFiles(root)
    offers = {one.name: one for one in map(offer, ALL_VFIO)}

    async def users(addresses: object) -> dict[str, str]:
        return {}

    async with Api.connect(kubeconfig=kubeconfig, component="npufleet-dra-publisher") as api:
        claims = Claims(
            _Counted(api, deaths.api),  # type: ignore[arg-type]
            host,
            CheckpointStore(host),
            lambda driver, name: offers.get(name) if driver == DRIVER else None,
            pool=NODE,
            boot_id=read_boot_id(host),
            users=users,
        )
        await claims.start()
        with deaths:
            if act == "unprepare":
                return dict(await claims.unprepare(DRIVER, [ref]))
            answer = (await claims.prepare(DRIVER, [ref]))[ref.uid]
            return answer if isinstance(answer, str) else [[one.device, *one.cdi_ids] for one in answer]


class _Counted:
    """The API server, whose calls are steps too."""

    def __init__(self, api: Api, step: Callable[[str, str], None]) -> None:
        self._api = api
        self._step = step

    async def get(self, *arguments: object) -> object:
        self._step("before", "get")
        found = await self._api.get(*arguments)  # type: ignore[arg-type]
        self._step("after", "get")
        return found


def main(arguments: list[str]) -> None:
    root, kubeconfig, act, name, uid, step = arguments
    deaths = Deaths(
        Path(root), at=int(step) if int(step) >= 0 else None, die=lambda: os.kill(os.getpid(), signal.SIGKILL)
    )
    answer = asyncio.run(work(Path(root), Path(kubeconfig), act, ClaimRef("team-a", name, uid), deaths))
    sys.stdout.write(json.dumps({"answer": answer, "steps": deaths.steps}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
