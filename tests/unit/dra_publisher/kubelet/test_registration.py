"""Sockets and registration: what the kubelet finds, in which order, and what is left when an instance is gone."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_publisher.kubelet.plugins import Plugins
from dra_publisher.kubelet.sockets import place
from kubelet_api import registration_pb2 as messages
from kubelet_api.registration_pb2_grpc import RegistrationServicer, add_RegistrationServicer_to_server
from node_host.host import open_host
from tests.builders.kubelet_plugins import DRIVER, Node, claim
from tests.builders.waiting import until

ONE = "11111111-1111-1111-1111-111111111111"
OTHER = "22222222-2222-2222-2222-222222222222"


async def test_the_kubelet_registers_the_driver_by_all_rules(node: Node) -> None:
    kubelet = await node.kubelet()
    plugins = node.plugins(pod_uid=ONE)
    await plugins.serve(frozenset({DRIVER}))
    plugin = await kubelet.registered(DRIVER)
    assert plugin.endpoint == f"/var/lib/kubelet/plugins/{DRIVER}/dra-{ONE}.sock"
    assert plugin.service == "v1.DRAPlugin"
    assert plugin.health_service == "v1.DRAResourceHealth"
    await until(lambda: plugins.problem() is None, what="ready")
    assert kubelet.registrations == [DRIVER]


async def test_it_is_not_ready_before_the_kubelet_has_registered_it(node: Node) -> None:
    plugins = node.plugins()
    assert plugins.problem() == "the kubelet's sockets are not served yet"
    await plugins.serve(frozenset({DRIVER}))
    assert f"has not registered driver {DRIVER} yet" in (plugins.problem() or "")
    kubelet = await node.kubelet()
    await kubelet.registered(DRIVER)
    await until(lambda: plugins.problem() is None)


async def test_a_refused_registration_is_no_readiness_and_carries_the_kubelets_words(node: Node) -> None:
    told: list[str | None] = []
    plugins: Plugins = node.plugins(changed=lambda: told.append(plugins.problem()))
    kubelet = await node.kubelet(refuse=lambda info: "the moon is full")
    await plugins.serve(frozenset({DRIVER}))
    await until(lambda: kubelet.refusals)
    refusal = f"the kubelet refused driver {DRIVER}: the moon is full"
    await until(lambda: plugins.problem() == refusal)
    assert refusal in told
    kubelet.refuse = lambda info: None  # it tries again by itself
    await kubelet.registered(DRIVER)
    await until(lambda: plugins.problem() is None)
    assert told[-1] is None


async def test_a_kubelet_that_knows_none_of_the_versions_refuses_and_is_quoted(node: Node) -> None:
    await node.kubelet(services=("v2.DRAPlugin",))
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER}))
    await until(lambda: "is supported by the kubelet" in (plugins.problem() or ""))


async def test_a_host_without_a_kubelet_says_so_and_is_served_when_one_comes(node: Node) -> None:
    node.registry.rmdir()
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER}))
    assert "no kubelet has run on this host" in (plugins.problem() or "")
    assert not node.registry.exists()
    kubelet = await node.kubelet()
    await kubelet.registered(DRIVER)
    await until(lambda: plugins.problem() is None)


async def test_driver_names_come_and_go_while_the_others_stay_registered(node: Node) -> None:
    kubelet = await node.kubelet()
    plugins = node.plugins(pod_uid=ONE)
    await plugins.serve(frozenset({DRIVER}))
    kept = await kubelet.registered(DRIVER)
    await plugins.serve(frozenset({DRIVER, "npu.rebellions.ai"}))
    await kubelet.registered("npu.rebellions.ai")
    await plugins.serve(frozenset({DRIVER}))
    await kubelet.gone("npu.rebellions.ai")
    assert kubelet.plugins(DRIVER) == (kept,)
    assert kubelet.registrations == [DRIVER, "npu.rebellions.ai"]
    assert await kubelet.prepare(DRIVER, claim())
    await plugins.serve(frozenset())
    await kubelet.gone(DRIVER)
    assert node.sockets() == []
    assert plugins.problem() is None


async def test_serving_the_same_names_again_changes_nothing(node: Node) -> None:
    kubelet = await node.kubelet()
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER}))
    await kubelet.registered(DRIVER)
    for _ in range(20):
        await plugins.serve(frozenset({DRIVER}))
    assert kubelet.registrations == [DRIVER]


async def test_a_bad_driver_name_costs_no_other_one(node: Node) -> None:
    kubelet = await node.kubelet()
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER, "../../etc"}))
    await kubelet.registered(DRIVER)
    await until(
        lambda: plugins.problem() == "'../../etc' is no driver name: a DNS subdomain of at most 63 characters is one"
    )


async def test_a_long_host_root_is_no_matter(node: Node) -> None:
    node.root = node.root / ("deep" * 30)
    node.registry.mkdir(parents=True)
    kubelet = await node.kubelet()
    driver = "a" * 63
    await node.plugins(pod_uid=ONE).serve(frozenset({driver}))
    assert await kubelet.prepare(driver, claim())


async def test_the_kubelets_restart_registers_again(node: Node) -> None:
    kubelet = await node.kubelet()
    await node.plugins().serve(frozenset({DRIVER}))
    await kubelet.registered(DRIVER)
    await kubelet.restart()
    await kubelet.registered(DRIVER)
    assert kubelet.registrations == [DRIVER, DRIVER]
    assert await kubelet.prepare(DRIVER, claim())


@pytest.mark.parametrize("which", ["registration", "endpoint", "both directories"])
async def test_sockets_that_somebody_removes_come_back(node: Node, which: str) -> None:
    kubelet = await node.kubelet()
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER}))
    await kubelet.registered(DRIVER)
    if which == "registration":
        (node.registry / f"{DRIVER}-reg.sock").unlink()
    elif which == "endpoint":
        (node.directory() / "dra.sock").unlink()
    else:
        shutil.rmtree(node.directory())
        for path in node.registry.iterdir():
            path.unlink()
    await until(lambda: len(kubelet.registrations) == 2, what="registered anew")
    assert await kubelet.prepare(DRIVER, claim())
    await until(lambda: plugins.problem() is None)
    assert node.sockets() == ["dra.sock", f"{DRIVER}-reg.sock"]


async def test_a_stop_leaves_nothing_but_the_directories(node: Node) -> None:
    kubelet = await node.kubelet()
    plugins = node.plugins(pod_uid=ONE)
    await plugins.serve(frozenset({DRIVER, "npu.rebellions.ai"}))
    await kubelet.registered(DRIVER)
    await kubelet.registered("npu.rebellions.ai")
    await plugins.stop()
    assert list(node.registry.iterdir()) == []
    assert list(node.directory().iterdir()) == []
    await kubelet.gone(DRIVER)
    await plugins.serve(frozenset({DRIVER}))  # a last look of the daemon that comes too late
    assert node.sockets() == []


async def test_two_instances_serve_at_once_and_the_kubelet_goes_on_with_the_one_that_stays(node: Node) -> None:
    kubelet = await node.kubelet()
    old = node.plugins(pod_uid=ONE)
    await old.serve(frozenset({DRIVER}))
    await kubelet.registered(DRIVER)
    new = node.plugins(pod_uid=OTHER)
    await new.serve(frozenset({DRIVER}))
    await until(lambda: len(kubelet.plugins(DRIVER)) == 2)
    await until(lambda: new.problem() is None)
    assert (await kubelet.registered(DRIVER)).endpoint.endswith(f"dra-{OTHER}.sock")
    assert old.other_plugin(DRIVER) is None
    assert new.other_plugin(DRIVER) is None
    await old.stop()
    await until(lambda: len(kubelet.plugins(DRIVER)) == 1)
    assert node.sockets() == [f"dra-{OTHER}.sock", f"{DRIVER}-{OTHER}-reg.sock"]
    assert await kubelet.prepare(DRIVER, claim())


async def test_two_instances_without_uids_do_not_take_each_others_sockets(node: Node) -> None:
    kubelet = await node.kubelet()
    first = node.plugins()
    await first.serve(frozenset({DRIVER}))
    plugin = await kubelet.registered(DRIVER)
    second = node.plugins()
    await second.serve(frozenset({DRIVER}))
    assert "dra.sock is served by another process" in (second.problem() or "")
    assert kubelet.plugins(DRIVER) == (plugin,)
    assert first.problem() is None
    await first.stop()
    await until(lambda: second.problem() is None)
    assert await kubelet.prepare(DRIVER, claim())


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
async def test_what_is_no_socket_is_named_and_left_where_it_is(node: Node, kind: str) -> None:
    node.directory().mkdir(parents=True)
    path = node.directory() / "dra.sock"
    if kind == "file":
        path.write_text("mine")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/etc/passwd")
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER}))
    assert "dra.sock is in the way, and no socket" in (plugins.problem() or "")
    assert path.is_symlink() or path.exists()
    assert not list(node.registry.iterdir())
    path.rmdir() if kind == "directory" else path.unlink()
    kubelet = await node.kubelet()
    await kubelet.registered(DRIVER)


async def test_a_directory_that_cannot_be_made_is_told_and_tried_again(node: Node) -> None:
    node.directory().parent.write_text("a file")
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER}))
    assert f"driver {DRIVER} cannot be served" in (plugins.problem() or "")
    node.directory().parent.unlink()
    kubelet = await node.kubelet()
    await kubelet.registered(DRIVER)


async def test_a_stop_leaves_nothing_where_the_registration_could_not_be_made(node: Node) -> None:
    plugins = node.plugins(pod_uid=ONE)
    (node.registry / f"{DRIVER}-{ONE}-reg.sock").mkdir()
    await plugins.serve(frozenset({DRIVER}))
    assert "reg.sock is in the way, and no socket" in (plugins.problem() or "")
    assert node.sockets() == [f"dra-{ONE}.sock"]
    await plugins.stop()
    assert list(node.directory().iterdir()) == []


SERVED_BY_A_PROCESS = """
import asyncio, sys
from dra_publisher.kubelet.plugins import Plugins
from node_host.host import open_host

class Nothing:
    async def prepare(self, driver, claims): return {}
    async def unprepare(self, driver, claims): return {}
    def devices(self, driver): return ()
    def subscribe(self, callback): pass

async def main():
    plugins = Plugins(open_host(sys.argv[1]), Nothing(), Nothing(), pod_uid=sys.argv[2] or None)
    await plugins.serve(frozenset(sys.argv[3:]))
    print("served", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def killed(root: Path, pod_uid: str, *drivers: str) -> None:
    """Leave behind what an instance leaves that is killed while it serves."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVED_BY_A_PROCESS, str(root), pod_uid, *drivers, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"served\n"
    process.send_signal(signal.SIGKILL)
    await process.wait()


async def test_sockets_of_a_killed_instance_are_made_anew_under_the_same_names(node: Node) -> None:
    await killed(node.root, "", DRIVER)
    assert node.sockets() == ["dra.sock", f"{DRIVER}-reg.sock"]
    kubelet = await node.kubelet()
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER}))
    assert await kubelet.prepare(DRIVER, claim())


async def test_sockets_of_a_killed_instance_of_another_pod_are_removed(node: Node) -> None:
    long = "a" * 60  # its registration socket does not even name the driver
    await killed(node.root, ONE, DRIVER, long)
    assert len(node.sockets()) == 4
    (node.directory() / ".npufleet-0123456789ab").symlink_to("nowhere")
    kubelet = await node.kubelet()
    await node.plugins(pod_uid=OTHER).serve(frozenset({DRIVER, long}))
    await kubelet.registered(DRIVER)
    await kubelet.registered(long)
    assert len(node.sockets()) == 4
    assert not [path for path in (*node.registry.iterdir(), *node.directory().iterdir()) if ONE in path.name]


async def test_what_a_death_leaves_between_binding_and_naming_is_removed(node: Node) -> None:
    half = socket.socket(socket.AF_UNIX)
    os.chdir(node.registry)
    half.bind(".npufleet-0123456789ab")
    half.close()
    await node.plugins().serve(frozenset({DRIVER}))
    assert [path.name for path in node.registry.iterdir()] == [f"{DRIVER}-reg.sock"]


async def test_a_link_that_was_planted_removes_no_foreign_socket(node: Node) -> None:
    foreign = node.root / "var/lib/kubelet/device-plugins/kubelet.sock"
    foreign.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        os.chdir(foreign.parent)
        dead.bind(foreign.name)
    node.directory().mkdir(parents=True)
    (node.directory() / ".registration-of-dra-x.sock").symlink_to("/var/lib/kubelet/device-plugins/kubelet.sock")
    await node.plugins().serve(frozenset({DRIVER}))
    assert foreign.is_socket()


class Stranger(RegistrationServicer):
    """A plugin of somebody else."""

    def __init__(self, driver: str, kind: str = "DRAPlugin") -> None:
        self.asked = 0
        self.when_asked: Callable[[], None] = lambda: None
        self._info = messages.PluginInfo(type=kind, name=driver, endpoint="/vendor/dra.sock", supported_versions=["v1"])

    async def GetInfo(self, request: messages.InfoRequest, context: Any) -> messages.PluginInfo:  # noqa: N802
        self.asked += 1
        self.when_asked()
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802
        self, request: messages.RegistrationStatus, context: Any
    ) -> messages.RegistrationStatusResponse:
        return messages.RegistrationStatusResponse()


async def strange(node: Node, name: str, stranger: Stranger) -> grpc.aio.Server:
    server = grpc.aio.server()
    add_RegistrationServicer_to_server(stranger, server)
    path = f"/var/lib/kubelet/plugins_registry/{name}"
    place(open_host(node.root), path, lambda short: _bind(server, short))
    await server.start()
    return server


def _bind(server: grpc.aio.Server, short: str) -> None:
    server.add_insecure_port(f"unix:{short}")


async def test_another_plugins_registration_of_the_name_is_named_and_left_alone(node: Node) -> None:
    server = await strange(node, "vendor.sock", Stranger(DRIVER))
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER, "npu.rebellions.ai"}))
    assert plugins.other_plugin(DRIVER) == (
        f"/var/lib/kubelet/plugins_registry/vendor.sock registers {DRIVER} with endpoint /vendor/dra.sock"
    )
    assert plugins.other_plugin("npu.rebellions.ai") is None
    assert node.sockets() == ["dra.sock", "npu.rebellions.ai-reg.sock", "vendor.sock"]
    assert DRIVER + " " not in (plugins.problem() or "")
    await server.stop(None)
    (node.registry / "vendor.sock").unlink()
    await until(lambda: plugins.other_plugin(DRIVER) is None)
    await until(lambda: (node.registry / f"{DRIVER}-reg.sock").is_socket())


async def test_another_plugin_with_the_very_same_socket_is_named(node: Node) -> None:
    server = await strange(node, f"{DRIVER}-reg.sock", Stranger(DRIVER))
    plugins = node.plugins()
    await plugins.serve(frozenset({DRIVER}))
    assert f"{DRIVER}-reg.sock registers {DRIVER}" in (plugins.other_plugin(DRIVER) or "")
    await server.stop(None)  # it ends without removing its socket
    kubelet = await node.kubelet()
    await kubelet.registered(DRIVER)
    assert plugins.other_plugin(DRIVER) is None


async def test_a_plugin_that_comes_later_is_named_and_costs_the_registration_nothing(node: Node) -> None:
    kubelet = await node.kubelet()
    told: list[bool] = []
    plugins = node.plugins(changed=lambda: told.append(True))
    await plugins.serve(frozenset({DRIVER}))
    ours = await kubelet.registered(DRIVER)
    await until(lambda: plugins.problem() is None)
    told.clear()
    stranger = Stranger("another.example.com")
    server = await strange(node, "vendor.sock", stranger)
    csi = await strange(node, "csi.sock", Stranger(DRIVER, kind="CSIPlugin"))
    await until(lambda: stranger.asked)
    assert plugins.other_plugin(DRIVER) is None
    assert not told
    await server.stop(None)
    await csi.stop(None)
    (node.registry / "vendor.sock").unlink()
    server = await strange(node, "vendor.sock", Stranger(DRIVER))
    await until(lambda: plugins.other_plugin(DRIVER) is not None)
    assert told
    assert ours in kubelet.plugins(DRIVER)
    await server.stop(None)
    kubelet.violations.clear()  # of the strangers


async def test_a_plugin_that_withdraws_while_it_is_asked_breaks_no_rule_and_one_that_stays_does(node: Node) -> None:
    """Of the kubelet that the tests play: a plugin that ends in that very moment is no fault of the plugin."""
    kubelet = await node.kubelet()
    going = Stranger(DRIVER)
    going.when_asked = (node.registry / "going.sock").unlink
    first = await strange(node, "going.sock", going)
    await until(lambda: going.asked)
    second = await strange(node, "staying.sock", Stranger(DRIVER))
    # One after the other is asked: the first has been judged when the second is.
    await until(lambda: any("staying.sock" in what for what in kubelet.violations))
    assert any("/vendor/dra.sock" in what for what in kubelet.violations)
    assert not any("going.sock" in what for what in kubelet.violations)
    await first.stop(None)
    await second.stop(None)
    kubelet.violations.clear()


async def test_other_plugins_are_asked_once_and_a_silent_one_holds_nobody_up(node: Node) -> None:
    stranger = Stranger("another.example.com")
    server = await strange(node, "vendor.sock", stranger)
    with socket.socket(socket.AF_UNIX) as silent:
        os.chdir(node.registry)
        silent.bind("silent.sock")
        silent.listen()
        (node.registry / "file.txt").write_text("no socket")
        (node.registry / "below").mkdir()
        plugins = node.plugins()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await plugins.serve(frozenset({DRIVER}))
        assert loop.time() - began < 5
        assert (node.registry / f"{DRIVER}-reg.sock").is_socket()
        for _ in range(3):
            await plugins.serve(frozenset({DRIVER, f"x{_}.io"}))
    assert stranger.asked == 1
    await server.stop(None)


def test_nothing_here_needs_a_running_loop_to_be_made(tmp_path: Path) -> None:
    class Nothing:
        async def prepare(self, driver: str, claims: Any) -> Any: ...

        async def unprepare(self, driver: str, claims: Any) -> Any: ...

        def devices(self, driver: str) -> Any: ...

        def subscribe(self, callback: Any) -> None: ...

    assert Plugins(open_host(tmp_path), Nothing(), Nothing()).problem() is not None
