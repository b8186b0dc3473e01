"""How the simulated kubelet finds DRA plugins, and whom of several it calls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node_host.host.kernel_files import KernelFiles
from simulated_node.kubelet.dra.plugin import ClaimName, GivenDevice, PluginError
from simulated_node.kubelet.dra.registry import PluginRegistry
from tests.builders.dra_plugin import DRIVER, PlayedPlugin
from tests.builders.waiting import until

CLAIM = ClaimName("team-a", "npu", "uid-1")


class Clock:
    """Pauses that are remembered, and take no time."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0.005)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Deeper than an address of a Unix socket may be long."""
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    return deep


@asynccontextmanager
async def running(root: Path, clock: Clock | None = None) -> AsyncIterator[PluginRegistry]:
    registry = PluginRegistry(KernelFiles(root), lambda: None, sleep=(clock or Clock()).sleep)
    task = asyncio.create_task(registry.run())
    try:
        yield registry
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_plugin_is_found_told_and_called(root: Path) -> None:
    async with running(root) as registry, PlayedPlugin(root) as plugin:
        await until(lambda: registry.is_connected(DRIVER), what="it is registered")
        assert plugin.told == [(True, "")]
        found = registry.plugin(DRIVER)
        assert found is not None
        answers = await found.prepare([CLAIM])
        assert answers["uid-1"] == (
            GivenDevice(DRIVER, "node", "vfio-uid-1", ("npu",), (f"k8s.{DRIVER}/claim=uid-1",)),
        )
        assert await found.unprepare([CLAIM]) == {"uid-1": ""}
        plugin.error = "not now"
        assert await found.prepare([CLAIM]) == {"uid-1": "not now"}
        assert await found.unprepare([CLAIM]) == {"uid-1": "not now"}
    assert registry.drivers == frozenset()


@pytest.mark.parametrize("calls", [1, 2], ids=["connecting", "registering"])
async def test_fault_in_the_work_on_a_plugin_ends_the_kubelet_instead_of_that_work_alone(
    root: Path, calls: int
) -> None:
    told = 0

    def changed() -> None:
        nonlocal told
        told += 1
        if told == calls:
            raise ZeroDivisionError

    registry = PluginRegistry(KernelFiles(root), changed, sleep=Clock().sleep)
    async with PlayedPlugin(root), asyncio.timeout(10):
        with pytest.raises(ZeroDivisionError):
            await registry.run()


async def test_an_older_plugin_is_called_by_its_own_service(root: Path) -> None:
    async with running(root) as registry, PlayedPlugin(root, versions=("v1beta1.DRAPlugin",)):
        await until(lambda: registry.is_connected(DRIVER))
        found = registry.plugin(DRIVER)
        assert found is not None
        assert not isinstance((await found.prepare([CLAIM]))["uid-1"], str)


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        ({"kind": "CSIPlugin"}, "no handler registered for plugin type: CSIPlugin"),
        ({"versions": ("1.0.0",)}, "the plugin serves 1.0.0"),
        ({"versions": ()}, "the plugin serves none"),
        ({"endpoint": "/var/lib/kubelet/plugins/elsewhere/dra.sock"}, "No such file or directory"),
    ],
)
async def test_a_plugin_that_cannot_be_called_is_told_why_and_asked_again_ever_later(
    root: Path, plugin: dict[str, object], words: str
) -> None:
    clock = Clock()
    async with running(root, clock) as registry, PlayedPlugin(root, **plugin) as played:  # type: ignore[arg-type]
        await until(lambda: len(played.told) >= 3, what="it was told three times")
        assert all(not accepted and words in error for accepted, error in played.told)
        assert registry.plugin(DRIVER) is None
    assert max(clock.pauses) > 0.5


async def test_a_plugin_whose_registration_goes_is_forgotten_and_a_new_one_is_another(root: Path) -> None:
    async with running(root) as registry:
        async with PlayedPlugin(root) as first:
            await until(lambda: registry.is_connected(DRIVER))
        await until(lambda: registry.plugin(DRIVER) is None)
        async with PlayedPlugin(root) as second:
            await until(lambda: registry.is_connected(DRIVER))
            assert (first.told, second.told) == ([(True, "")], [(True, "")])


async def test_of_two_the_one_that_came_last_is_called_and_the_other_when_it_is_gone(root: Path) -> None:
    """As at a rolling update: old and new pod both serve for a while."""
    async with running(root) as registry, PlayedPlugin(root, instance="old") as old:
        await until(lambda: registry.is_connected(DRIVER))
        new = PlayedPlugin(root, instance="new")
        async with new:
            await until(lambda: bool(new.told))
            found = registry.plugin(DRIVER)
            assert found is not None
            await until(lambda: found.is_connected)
            await found.prepare([CLAIM])
            assert (old.prepared, new.prepared) == ([], ["team-a/npu"])
        await until(lambda: registry.plugin(DRIVER) is not found)
        assert registry.plugin(DRIVER) is not None
        await registry.plugin(DRIVER).prepare([CLAIM])  # type: ignore[union-attr]
        assert old.prepared == ["team-a/npu"]


async def test_a_plugin_that_stops_serving_is_not_connected_and_comes_back_by_itself(root: Path) -> None:
    async with running(root) as registry:
        plugin = PlayedPlugin(root)
        async with plugin:
            await until(lambda: registry.is_connected(DRIVER))
            await plugin._servers[0].stop(None)
            await until(lambda: not registry.is_connected(DRIVER))
            found = registry.plugin(DRIVER)
            assert found is not None
            with pytest.raises(PluginError, match="UNAVAILABLE"):
                await found.prepare([CLAIM])
            await plugin.serve()
            await until(lambda: registry.is_connected(DRIVER), seconds=10)
            assert registry.plugin(DRIVER) is found


async def test_what_is_no_socket_or_begins_with_a_dot_is_left_alone(root: Path) -> None:
    async with running(root) as registry:
        directory = root / "var/lib/kubelet/plugins_registry"
        await until(directory.is_dir)
        (directory / "file-reg.sock").write_text("")
        (directory / "dangling-reg.sock").symlink_to("nowhere")
        (directory / "directory").mkdir()
        async with PlayedPlugin(root) as plugin:
            await until(lambda: bool(plugin.told))
        assert registry.drivers <= {DRIVER}
