"""The simulated machine in a process of its own: writers of other processes, their pids, what sleeps, what breaks."""

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_host.evidence.pods import read_pod_uid
from node_host.host import KernelFiles, SimulatedHost, Uevent, open_host
from node_host.host.write_child import connect
from tests.builders import hosts
from tests.builders.hosts import DRIVERS, NPU, PORT, TWIN, Served
from tests.builders.waiting import eventually

UNBIND = f"{DRIVERS}/vfio-pci/unbind"
OVERRIDE = hosts.attribute(NPU, "driver_override")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Served]:
    with hosts.served(tmp_path) as machine:
        yield machine


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One machine for the tests that leave it as it is."""
    with hosts.served(tmp_path_factory.mktemp("common")) as machine:
        yield machine


def child(machine: Served, path: str, data: bytes) -> subprocess.Popen[bytes]:
    command = machine.host.write_command(path, data)
    assert command is not None
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def test_machine_says_when_it_is_ready(machine: Served) -> None:
    boot_id = hosts.text(machine.host, "/proc/sys/kernel/random/boot_id").strip()
    assert machine.said == {"ready": True, "root": str(machine.root), "bootID": boot_id}
    assert machine.control.boot_id == boot_id
    assert isinstance(machine.host, SimulatedHost)


def test_write_is_seen_through_files_and_logged_with_the_writers_pid(machine: Served) -> None:
    host = machine.host
    host.write(OVERRIDE, b"vfio-pci\n")
    assert hosts.text(host, OVERRIDE) == "vfio-pci\n"
    assert (machine.root / OVERRIDE[1:]).read_text() == "vfio-pci\n"
    with hosts.refused("EBUSY"):
        host.write(f"{DRIVERS}/rebellions/bind", TWIN.encode())
    with hosts.refused("ENOENT"):
        host.load_module("no_such_module")
    assert [(one.pid, one.path, one.result) for one in machine.control.writes] == [
        (os.getpid(), OVERRIDE, "ok"),
        (os.getpid(), f"{DRIVERS}/rebellions/bind", "EBUSY"),
        (os.getpid(), "module:no_such_module", "ENOENT"),
    ]


def test_child_writes_under_its_own_pid(common: Served) -> None:
    process = child(common, OVERRIDE, b"vfio-pci\n\0")
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (0, b"")
    record = common.control.writes[-1]
    assert (record.pid, record.parent, record.data) == (process.pid, os.getpid(), "vfio-pci\n\0")
    refused = child(common, UNBIND, NPU.encode())
    out, _ = refused.communicate(timeout=10)
    assert refused.returncode == 1
    assert json.loads(out) == {"errno": errno.ENOENT, "message": os.strerror(errno.ENOENT)}


def test_process_of_a_pod_is_started_from_outside(machine: Served) -> None:
    uid = "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"
    hosts.give_to_vfio(machine.host, NPU)
    machine.control.open_device("/dev/vfio/20", pid=4711, pod_uid=uid)
    assert read_pod_uid(machine.host, 4711) == uid


def test_blocked_unbind_keeps_its_child_and_nobody_else(machine: Served) -> None:
    host, control = machine.host, machine.control
    hosts.give_to_vfio(host, NPU)
    control.open_device("/dev/vfio/20", pid=4711, comm="qemu-kvm")
    process = child(machine, UNBIND, NPU.encode())
    assert control.wait_until_sleeping(UNBIND)
    host.write(f"{DRIVERS}/rebellions/unbind", TWIN.encode())
    assert hosts.driver_of(host, TWIN) is None
    assert process.poll() is None
    control.close_device("/dev/vfio/20", pid=4711)
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (0, b"")
    assert hosts.driver_of(host, NPU) is None
    last = machine.control.writes[-1]
    assert (last.pid, last.path, last.result) == (process.pid, UNBIND, "ok")


def test_write_whose_child_was_killed_stays_asleep_and_ends_when_it_can(machine: Served) -> None:
    host, control = machine.host, machine.control
    hosts.give_to_vfio(host, NPU)
    control.open_device("/dev/vfio/20")
    process = child(machine, UNBIND, NPU.encode())
    assert control.wait_until_sleeping(UNBIND)
    process.kill()
    process.communicate()
    assert control.sleeping == [UNBIND]
    assert host.exists("/dev/vfio/20")
    control.close_device("/dev/vfio/20")
    eventually(lambda: not host.exists("/dev/vfio/20"), every=0.005)
    eventually(lambda: control.writes[-1].path == UNBIND, every=0.005)
    assert machine.control.writes[-1].pid == process.pid


def test_held_write_of_a_device_that_goes_away(machine: Served) -> None:
    hold = machine.control.block(f"*/{NPU}/driver_override")
    process = child(machine, OVERRIDE, b"vfio-pci")
    assert hold.wait_until_blocked()
    machine.control.hot_remove(NPU)
    hold.release()
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, json.loads(out)["errno"]) == (1, errno.ENODEV)


def test_ordered_faults_reach_other_processes(machine: Served) -> None:
    machine.control.fail_next(OVERRIDE, "EIO")
    machine.control.swallow_next(f"{DRIVERS}/rebellions/unbind")
    with hosts.refused("EIO"):
        machine.host.write(OVERRIDE, b"x")
    machine.host.write(f"{DRIVERS}/rebellions/unbind", NPU.encode())
    assert hosts.driver_of(machine.host, NPU) == "rebellions"


def test_hot_plug_and_reboot_by_control(machine: Served) -> None:
    device = {"address": "0000:2b:00.0", "parent": PORT, "vendor": "1eff", "device": "1250", "class": "120000"}
    machine.control.hot_add(device)
    assert hosts.driver_of(machine.host, "0000:2b:00.0") == "rebellions"
    before = machine.control.boot_id
    after = machine.control.reboot()
    assert after != before
    assert hosts.text(machine.host, "/proc/sys/kernel/random/boot_id").strip() == after
    assert not machine.host.exists(f"{hosts.DEVICES}/0000:2b:00.0")


def test_rebuilding_and_rescan_by_control(machine: Served) -> None:
    device = {"address": "0000:2b:00.0", "parent": PORT, "vendor": "1eff", "device": "1250", "class": "120000"}
    machine.control.hot_add(device, announced=False)
    assert not machine.host.exists(f"{hosts.DEVICES}/0000:2b:00.0")
    machine.host.write("/sys/bus/pci/rescan", b"1")
    assert hosts.driver_of(machine.host, "0000:2b:00.0") == "rebellions"
    machine.control.rebuild(move={NPU: "0000:2c:00.0"}, groups={20: 60}, add=[device], remove=[TWIN])
    machine.control.reboot()
    names = machine.host.list(hosts.DEVICES)
    assert {"0000:2b:00.0", "0000:2c:00.0"} <= set(names)
    assert not {NPU, TWIN} & set(names)
    assert machine.host.exists("/sys/kernel/iommu_groups/60/devices/0000:2c:00.0")


def test_slow_and_dropped_by_control(machine: Served) -> None:
    machine.control.block("remove:*", seconds=0.05)
    machine.control.drop_events(2, silently=True)
    machine.host.write(f"{DRIVERS}/rebellions/unbind", NPU.encode())
    assert hosts.driver_of(machine.host, NPU) is None


async def test_events_come_through_the_socket(machine: Served) -> None:
    host = machine.host
    async with host.events() as stream, asyncio.timeout(10):
        host.write(f"{DRIVERS}/rebellions/unbind", NPU.encode())
        events = [await anext(stream) for _ in range(2)]
    devpath = f"/devices/pci0000:20/{PORT}/{NPU}"
    assert events == [
        Uevent("remove", f"{devpath}/rebellions/rbln0", "rebellions", None, None),
        Uevent("unbind", devpath, "pci", None, NPU),
    ]


async def test_lost_events_are_told_through_the_socket(common: Served) -> None:
    async with common.host.events() as stream, asyncio.timeout(10):
        common.control.lose_events()
        with hosts.refused("ENOBUFS"):
            await anext(stream)


async def test_listener_learns_that_the_machine_went_down(machine: Served) -> None:
    async with machine.host.events() as stream, asyncio.timeout(10):
        await asyncio.to_thread(machine.stop)
        with pytest.raises(OSError, match=r"shutdown|went away"):
            await anext(stream)


async def test_listener_that_hangs_up_is_forgotten(common: Served) -> None:
    for _ in range(20):
        async with common.host.events() as stream:
            assert stream is not None
    common.host.write(hosts.attribute(NPU, "uevent"), b"change")
    threads = Path(f"/proc/{common.process.pid}/task")
    eventually(lambda: len(list(threads.iterdir())) < 10, what="the listeners' threads end")


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b"[]\n",
        b"{}\n",
        b'{"op": "write"}\n',
        b'{"op": "write", "path": 3, "data": ""}\n',
        b'{"op": "write", "path": "/sys", "data": "\\u20ac"}\n',
        b'{"op": "load_module"}\n',
        b'{"op": "control"}\n',
        b'{"op": "control", "action": "nonsense"}\n',
        b'{"op": "control", "action": "release", "block": 9}\n',
        b'{"op": "control", "action": "open_device", "node": "/dev/rbln0", "pid": true}\n',
        b'{"op": "control", "action": "hot_add", "device": {"address": "x"}}\n',
        b'{"op": "control", "action": "fail_next", "pattern": "/sys/*", "errno": "ENONSENSE"}\n',
        b'{"op": "read", "path": "/sys"}\n',
        b'{"op": "control", "action": "rebuild", "move": []}\n',
        b'{"op": "control", "action": "rebuild", "groups": {"x": "1"}}\n',
        b'{"op": "control", "action": "rebuild", "add": [1]}\n',
        b'{"op": "control", "action": "rebuild", "remove": ["0000:ff:1f.7"]}\n',
        b'{"op": "control", "action": "block", "pattern": "*", "seconds": "long"}\n',
        b'{"op": "control", "action": "requests"}\n',
        b"\xff\xfe\n",
        b"x" * (1 << 20),
    ],
)
def test_request_that_is_none_is_answered_and_harms_nothing(common: Served, line: bytes) -> None:
    written = len(common.control.writes)
    with connect(str(common.root)) as connection, connection.makefile("rwb") as stream:
        stream.write(line)
        stream.flush()
        answer = json.loads(stream.readline())
    assert answer["errno"] == errno.EPROTO
    assert answer["message"]
    common.host.write(OVERRIDE, b"\n")
    assert len(common.control.writes) == written + 1


def test_caller_that_says_nothing_or_leaves_harms_nobody(common: Served) -> None:
    silent = connect(str(common.root))
    connect(str(common.root)).close()
    half = connect(str(common.root))
    half.sendall(b'{"op": "wri')
    half.close()
    common.host.write(OVERRIDE, b"\n")
    silent.close()


def test_root_may_lie_deeper_than_a_socket_address_reaches(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    with hosts.served(deep) as machine:
        assert len(str(machine.root)) > 107
        machine.host.write(OVERRIDE, b"vfio-pci")
        process = child(machine, OVERRIDE, b"\n")
        assert process.wait(10) == 0
        assert hosts.text(machine.host, OVERRIDE) == "(null)\n"


def test_machine_stops_cleanly_and_leaves_its_files(machine: Served) -> None:
    machine.host.write(OVERRIDE, b"x")
    assert machine.stop() == 0
    assert not (machine.root / ".simulated-kernel/socket").exists()
    assert isinstance(open_host(machine.root), KernelFiles)
    assert len(machine.control.writes) == 1


def test_machine_stops_although_a_write_sleeps(machine: Served) -> None:
    machine.control.block("/sys/*")
    process = child(machine, OVERRIDE, b"x")
    assert machine.control.wait_until_sleeping(OVERRIDE)
    assert machine.stop() == 0
    out, _ = process.communicate(timeout=10)
    assert process.returncode == 1
    assert json.loads(out)["errno"] in (errno.EIO, errno.ESHUTDOWN, errno.ECONNRESET)


def test_machine_that_was_killed_boots_again_over_its_root(tmp_path: Path) -> None:
    with hosts.served(tmp_path) as machine:
        machine.process.send_signal(signal.SIGKILL)
        machine.process.wait()
        assert (machine.root / ".simulated-kernel/socket").exists()
        with pytest.raises(ConnectionRefusedError):
            machine.host.write(OVERRIDE, b"x")
        first = machine.said["bootID"]
    with hosts.served(tmp_path) as again:
        assert again.said["bootID"] != first
        again.host.write(OVERRIDE, b"x")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "simulated_node", *arguments], capture_output=True, text=True, timeout=60
    )


def test_what_cannot_be_served_is_said(common: Served, tmp_path: Path) -> None:
    twice = run("--description", "node-atom", "--root", str(common.root))
    assert twice.returncode == 3
    assert "another simulated kernel runs below" in twice.stderr
    unknown = run("--description", "node-nowhere", "--root", str(tmp_path / "x"))
    assert unknown.returncode == 2
    assert "shipped are" in unknown.stderr
    half = run("--description", "node-atom", "--root", str(tmp_path / "x"), "--node-name", "n")
    assert half.returncode == 2
    label = run("--description", "node-atom", "--root", str(tmp_path / "x"), "--label", "pool")
    assert label.returncode == 2
    assert "KEY=VALUE" in label.stderr


def test_machines_run_side_by_side(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with hosts.served(tmp_path / "a") as one, hosts.served(tmp_path / "b") as other:
        one.host.write(OVERRIDE, b"vfio-pci")
        assert hosts.text(other.host, OVERRIDE) == "(null)\n"
        assert other.control.writes == []


def test_pid_comes_from_the_system_not_from_the_caller(common: Served) -> None:
    with connect(str(common.root)) as connection, connection.makefile("rwb") as stream:
        stream.write(json.dumps({"op": "write", "path": OVERRIDE, "data": "x", "pid": 1}).encode() + b"\n")
        stream.flush()
        assert json.loads(stream.readline()) == {"ok": True}
        assert isinstance(connection, socket.socket)
    assert common.control.writes[-1].pid == os.getpid()
