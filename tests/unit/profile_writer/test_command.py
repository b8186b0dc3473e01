"""The program itself, as a process against a simulated kernel in another process."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from profile_writer.main import main
from profile_writer.record import RECORD
from tests.builders.binder_process import Machine, state
from tests.builders.writer import CARD, FUNCTIONS, MIXED, carries, l40s


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, l40s().model_dump(mode="json", by_alias=True, exclude_none=True))
    yield made
    made.stop()


def run(machine: Machine, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    file = directory / "desired.yaml"
    file.write_text(yaml.safe_dump(state(carries(MIXED))))
    command = [sys.executable, "-m", "profile_writer.main", "--host-root", str(machine.root), "--desired", str(file)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_one_pass_from_a_file_types_the_card_and_has_nothing_to_do_the_second_time(
    machine: Machine, tmp_path: Path
) -> None:
    dry = run(machine, tmp_path, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert f"enable the 16 virtual functions of {CARD}" in dry.stdout
    assert machine.control.writes == []
    assert not (machine.root / RECORD.lstrip("/")).exists()
    assert not (machine.root / "run/npufleet").exists()

    done = run(machine, tmp_path, "--once")
    assert done.returncode == 0, done.stderr
    assert f"{FUNCTIONS[0]}  L40S-24Q  Ready  Typed" in done.stdout
    typed = [record for record in machine.control.writes if record.path.endswith("current_vgpu_type")]
    assert [record.data.strip() for record in typed] == ["1155", "1153", "1153"]

    again = run(machine, tmp_path, "--once")
    assert again.returncode == 0
    assert again.stdout.startswith("Nothing to do\n")


def test_a_program_elsewhere_is_not_found_and_that_is_told(machine: Machine, tmp_path: Path) -> None:
    done = run(machine, tmp_path, "--once", "--sriov-manage", "/opt/none", "--nvidia-smi", "/opt/none")
    assert done.returncode == 1
    assert "FunctionsFailed" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [[], ["--node", "one", "--desired", "x.yaml"], ["--once", "--desired", "/none"], ["--resync-seconds", "0"]],
    ids=["no node", "desired alone", "no file", "no seconds"],
)
def test_wrong_usage_ends_with_2(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPUFLEET_NODE", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
