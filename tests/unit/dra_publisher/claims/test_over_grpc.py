"""Claims through the kubelet's own calls: 8 callers, 64 claims, answered over the socket."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from crds.device_names import NamedKind, device_name
from dra_publisher.kubelet.plugins import Plugins
from tests.builders.claims_world import ALL_VFIO, DRIVER, World, vfio
from tests.builders.fake_kubelet import FakeKubelet
from tests.builders.kubelet_plugins import Health

CALLERS = 8


async def test_the_kubelet_is_answered_for_each_claim_of_its_call(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short from where they are
    host = world.host
    host.local("/var/lib/kubelet/plugins_registry").mkdir(parents=True)
    plugins = Plugins(host, world.claims, Health())
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        kubelet = await stack.enter_async_context(FakeKubelet(host.local("/")))
        await plugins.serve(frozenset({DRIVER}))
        stack.push_async_callback(plugins.stop)
        await kubelet.registered(DRIVER)
        refs = [world.claim(f"vm-{number}", vfio(address)) for number, address in enumerate(ALL_VFIO)]
        thief = world.claim("thief", device_name(NamedKind.VFIO, ALL_VFIO[0]))
        found = dict(await kubelet.prepare(DRIVER, *refs, thief))
        assert "is prepared for claim team-a/vm-0" in str(found.pop(thief.uid))
        assert set(found) == {ref.uid for ref in refs}
        recorded = {uid: claim.devices[0] for uid, claim in world.record().claims.items()}
        for uid, devices in found.items():
            assert not isinstance(devices, str)
            (device,) = devices
            assert tuple(device.cdi_device_ids) == recorded[uid].cdi_ids

        took: list[float] = []

        async def caller(number: int) -> None:
            for turn in range(64 // CALLERS):
                ref = refs[(number + turn) % len(refs)]
                began = time.perf_counter()
                again = await kubelet.prepare(DRIVER, ref)
                took.append(time.perf_counter() - began)
                assert not isinstance(again[ref.uid], str)

        await asyncio.gather(*(caller(number) for number in range(CALLERS)))
        took.sort()
        print(f"repeated prepare over gRPC: p50 {took[32] * 1e3:.1f} ms, p99 {took[63] * 1e3:.1f} ms")
        assert await kubelet.unprepare(DRIVER, *refs) == {ref.uid: "" for ref in refs}
    assert world.record().claims == {} and [path for path in world.files() if "cdi" in path] == []
