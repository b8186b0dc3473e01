"""The health stream: all devices at once, again at each change, and again before the kubelet forgets."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from dra_publisher.kubelet.health_services import AGAIN_SECONDS, TIMEOUT_SECONDS, HealthStreams
from dra_publisher.kubelet.service import DeviceHealth
from tests.builders.fake_kubelet import FakeKubelet, Registered
from tests.builders.kubelet_plugins import DRIVER, Node, turns
from tests.builders.waiting import until

V1 = "v1.DRAResourceHealth"
V1ALPHA1 = "v1alpha1.DRAResourceHealth"

UNKNOWN, HEALTHY, UNHEALTHY = 0, 1, 2


async def listening(node: Node, service: str = V1, **options: Any) -> tuple[FakeKubelet, Registered]:
    kubelet = await node.kubelet(health_services=(service,))
    plugins = node.plugins(**options)
    await plugins.serve(frozenset({DRIVER}))
    plugin = await kubelet.registered(DRIVER)
    assert plugin.health_service == service
    await until(lambda: plugin.health_lists == 1, what="a first list")
    return kubelet, plugin


@pytest.mark.parametrize("service", [V1, V1ALPHA1])
async def test_all_devices_are_told_at_once(node: Node, service: str) -> None:
    node.health.list = (
        DeviceHealth("node-a", "one", True),
        DeviceHealth("node-a", "two", False, "the link is down"),
        DeviceHealth("node-a", "three", None),
    )
    _, plugin = await listening(node, service)
    told = {name: (health.health, health.message) for (_, name), health in plugin.health.items()}
    assert told == {"one": (HEALTHY, ""), "two": (UNHEALTHY, "the link is down"), "three": (UNKNOWN, "")}
    for health in plugin.health.values():
        assert abs(health.last_updated_time - time.time()) < 60
        assert health.health_check_timeout_seconds == TIMEOUT_SECONDS


@pytest.mark.parametrize("service", [V1, V1ALPHA1])
async def test_a_change_is_told_and_no_change_is_not(node: Node, service: str) -> None:
    _, plugin = await listening(node, service)
    node.health.set(*node.health.list)
    node.health.set(DeviceHealth("node-a", "one", False, "gone"), DeviceHealth("node-a", "two", True))
    await until(lambda: plugin.health_lists == 2)
    assert sorted(name for _, name in plugin.health) == ["one", "two"]
    node.health.set()
    await until(lambda: plugin.health_lists == 3)
    assert plugin.health == {}


async def test_a_burst_of_changes_is_one_or_two_lists(node: Node) -> None:
    _, plugin = await listening(node)
    for number in range(200):
        node.health.set(DeviceHealth("node-a", "one", True, str(number)))
        await asyncio.sleep(0)
    await until(lambda: [health.message for health in plugin.health.values()] == ["199"])
    assert plugin.health_lists <= 4


async def test_the_list_is_sent_again_well_before_it_is_too_old(node: Node) -> None:
    _, plugin = await listening(node, health_again_seconds=0.1)
    await until(lambda: plugin.health_lists >= 4)
    assert AGAIN_SECONDS * 2 < TIMEOUT_SECONDS


async def test_a_long_message_is_cut_where_a_character_ends(node: Node) -> None:
    node.health.list = (DeviceHealth("node-a", "one", False, "ä" * 600),)
    _, plugin = await listening(node)
    assert plugin.health["node-a", "one"].message == "ä" * 512


async def test_a_stop_ends_the_stream_instead_of_waiting_for_it(node: Node) -> None:
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER}))
    # Not the kubelet, which hangs up by itself when the registration goes.
    endpoint = f"/var/lib/kubelet/plugins/{DRIVER}/dra.sock"
    listener = Registered(node.root, DRIVER, endpoint, "", "v1.DRAPlugin", V1)
    await until(lambda: listener.health_lists == 1)
    async with asyncio.timeout(20):
        await plugins.stop(60.0)
    await until(lambda: listener.health_end is not None)
    await listener.close()


async def test_a_listener_that_has_gone_is_forgotten(node: Node) -> None:
    streams = HealthStreams(node.health)
    lists = streams.lists(DRIVER, asyncio.Event())
    assert (await anext(lists))[1] == node.health.list
    waiting = asyncio.ensure_future(anext(lists))
    await turns()
    assert streams.count == 1
    waiting.cancel()
    await asyncio.wait({waiting})
    assert streams.count == 0


async def test_two_instances_each_have_a_stream(node: Node) -> None:
    kubelet, first = await listening(node, pod_uid="11111111-1111-1111-1111-111111111111")
    await node.plugins(pod_uid="22222222-2222-2222-2222-222222222222").serve(frozenset({DRIVER}))
    await until(lambda: len(kubelet.plugins(DRIVER)) == 2)
    second = kubelet.plugins(DRIVER)[1]
    await until(lambda: second.health_lists == 1)
    node.health.set(DeviceHealth("node-a", "one", False))
    await until(lambda: first.health_lists == 2 and second.health_lists == 2)
