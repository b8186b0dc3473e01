"""The program itself, as a process against a simulated kernel in another process."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from node_host.acting.journal import JOURNAL
from node_host.pci.device import DEVICES
from tests.builders.binder import NPU, TWIN, host, npu, order
from tests.builders.binder_process import Machine, state
from vfio_binder.main import main


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    description = host(npu(), npu(TWIN, 21)).model_dump(mode="json", by_alias=True, exclude_none=True)
    made = Machine(tmp_path_factory.mktemp("machine"), description)
    yield made
    made.stop()


def test_once_from_a_file_binds_tells_so_and_has_nothing_to_do_the_second_time(machine: Machine) -> None:
    before = len(machine.control.writes)
    dry = machine.binder("--dry-run", entries=[order()])
    assert dry.returncode == 0, dry.stderr
    assert f"group-20: bind {NPU} to the driver of module vfio_pci (now on rebellions)" in dry.stdout
    assert "nothing is written" in dry.stdout
    assert len(machine.control.writes) == before
    assert not (machine.root / JOURNAL.lstrip("/")).exists()
    assert not (machine.root / "run/npufleet").exists()

    done = machine.binder("--once", entries=[order()])
    assert done.returncode == 0, done.stderr
    assert f"{NPU}  Ready  Bound" in done.stdout
    records = machine.control.writes[before:]
    assert [(record.path.rpartition("/")[2], record.data.strip(), record.result) for record in records] == [
        ("module:vfio_pci", "", "ok"),
        ("driver_override", "vfio-pci", "ok"),
        ("unbind", NPU, "ok"),
        ("drivers_probe", NPU, "ok"),
    ]
    # Each write is a child's: the binder itself never enters the kernel for one.
    writers = {record.pid for record in records[1:]}
    assert len(writers) == 3
    assert len({record.parent for record in records[1:]}) == 1

    again = machine.binder("--once", entries=[order()])
    assert again.returncode == 0
    assert again.stdout.startswith("Plan: nothing to do\n")
    assert len(machine.control.writes) == before + 4

    released = machine.binder("--once", entries=[order(intent="Release")])
    assert released.returncode == 0
    assert f"{NPU}  Released  Released" in released.stdout
    assert [record.path.rpartition("/")[2] for record in machine.control.writes[before + 4 :]] == [
        "driver_override",
        "unbind",
        "drivers_probe",
    ]


@pytest.mark.parametrize("odd", ["file", "loop", "directory"])
def test_an_odd_state_directory_is_a_finding_that_names_the_journal(machine: Machine, odd: str) -> None:
    place = machine.root / "var/lib/npufleet"
    kept = place.with_name("kept")
    before = len(machine.control.writes)
    place.mkdir(parents=True, exist_ok=True)
    place.rename(kept)
    try:
        if odd == "file":
            place.write_text("a file")
        elif odd == "loop":
            place.symlink_to(place.name)
        else:
            (place / "binder/journal.json").mkdir(parents=True)
        done = machine.binder("--once", entries=[order()])
    finally:
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()
        kept.rename(place)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Journal: " in done.stdout
    assert f"{NPU}  Blocked  JournalUnreadable" in done.stdout
    assert len(machine.control.writes) == before


def test_a_device_in_use_is_a_finding_and_is_not_written_to(machine: Machine) -> None:
    machine.control.open_device("/dev/rbln1", comm="vllm", pid=3107)
    before = len(machine.control.writes)
    for arguments in (["--once"], ["--dry-run"]):
        done = machine.binder(*arguments, entries=[order(TWIN)])
        assert done.returncode == 1
        assert f"{TWIN}  Blocked  InUse: in use by vllm (pid 3107 has /dev/rbln1 open)" in done.stdout
    assert len(machine.control.writes) == before
    machine.control.close_device("/dev/rbln1")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--node NAME is needed"),
        (["--node", "x", "--resync-seconds", "0"], "is not a number of seconds"),
        (["--node", "x", "--listen", "nonsense"], "is not HOST:PORT"),
        (["--desired", "/nonexistent.yaml"], "--desired goes with --once or --dry-run"),
        (["--once", "--desired", "/dev/zero"], "more than"),
        (["--once", "--desired", "/nonexistent.yaml"], "/nonexistent.yaml: No such file or directory"),
        (["--node", "x", "--host-root", "/nonexistent"], "is no directory"),
    ],
)
def test_wrong_usage_is_told_and_exits_with_2(
    machine: Machine, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert says in refused(machine, capsys, *arguments)


def refused(machine: Machine, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the program says of wrong usage: it exits with 2 before it has begun anything, so here it is no process."""
    with pytest.raises(SystemExit) as exited:
        main(["--host-root", str(machine.root), *arguments])
    assert exited.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("][", "not YAML"),
        ("- a list", "one object of kind NPUNodeState is wanted"),
        (
            {"spec": {"revision": "5d0f", "nodeUID": "x", "devices": [{"address": "23:00.0"}]}},
            "spec.devices[0].address",
        ),
        ({"spec": {"revision": "5d0f", "nodeUID": "x", "device": []}}, "spec.device"),
        ({"metadata": {"name": "another"}}, "is for node another, not for bench"),
    ],
)
def test_orders_that_cannot_be_understood_are_told_by_field(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str], document: object, says: str
) -> None:
    file = tmp_path / "desired.yaml"
    file.write_text(document if isinstance(document, str) else yaml.safe_dump(state() | dict(document)))  # type: ignore[call-overload]
    assert says in refused(machine, capsys, "--once", "--node", "bench", "--desired", str(file))


def test_an_api_server_that_cannot_be_reached_is_no_finding_but_a_failure(machine: Machine, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    before = len(machine.control.writes)
    done = machine.binder("--once", "--node", "bench", "--kubeconfig", str(kubeconfig))
    assert done.returncode == 3
    assert "127.0.0.1" in done.stderr
    assert len(machine.control.writes) == before


def test_a_stuck_write_of_a_process_that_died_keeps_its_group_locked_until_it_ends(machine: Machine) -> None:
    block = machine.control.block(f"{DEVICES}/{NPU}/driver_override")
    file = machine.root.parent / "stuck.yaml"
    file.write_text(yaml.safe_dump(state(order())))
    command = [sys.executable, "-m", "vfio_binder.main", "--host-root", str(machine.root), "--once"]
    first = subprocess.Popen([*command, "--desired", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert block.wait_until_blocked(20)
    first.kill()
    first.wait()
    before = len(machine.control.writes)
    second = machine.binder("--once", entries=[order(), order(TWIN)])
    assert second.returncode == 1
    assert f"{NPU}  Failed  WriteStuck: group-20 is locked by npufleet-vfio-binder (pid {first.pid})" in second.stdout
    assert f"{TWIN}  Ready  Bound" in second.stdout
    assert NPU not in {record.data.strip() for record in machine.control.writes[before:]}
    block.release()
    assert machine.control.wait_until(lambda: not machine.control.sleeping, 20)
    assert machine.control.wait_until(
        lambda: machine.binder("--once", entries=[order(), order(TWIN)]).returncode == 0, 20
    )


def test_wrong_usage_is_the_exit_code_of_the_process(machine: Machine) -> None:
    done = machine.binder("--desired", "/nonexistent.yaml")
    assert done.returncode == 2
    assert "--desired goes with --once or --dry-run" in done.stderr


def test_help_teaches(machine: Machine) -> None:
    done = machine.binder("--help")
    assert done.returncode == 0
    for words in ("NPUNodeState", "examples:", "exit codes:", "--dry-run", "journal.json"):
        assert words in done.stdout
