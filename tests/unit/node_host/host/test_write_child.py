"""The child that does one write: its answer, its independence, its speed."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_host.host import KernelFiles
from node_host.host import write_child as child
from tests.builders.examples import at_least

FLOOR = 2000


def run(root: Path, path: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    command = KernelFiles(root).write_command(path, data)
    assert command is not None
    # Nothing of this environment helps it: no path, no site packages.
    return subprocess.run(command, capture_output=True, timeout=30, env={}, cwd="/", check=False)


@pytest.mark.parametrize(
    "data", [b"0000:23:00.0", b"\n", b"\0", b"\\n", b"-x", b"\xff\x00 'a' \xc3\xa9\n", b"x" * 5000]
)
def test_child_writes_the_very_bytes(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "attribute").write_bytes(b"")
    done = run(tmp_path, "/attribute", data)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "attribute").read_bytes() == data


def test_child_tells_the_errno(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("link")
    for path, number in (("/none", errno.ENOENT), ("/directory", errno.EISDIR), ("/link", errno.ELOOP)):
        done = run(tmp_path, path, b"x")
        assert done.returncode == 1
        assert json.loads(done.stdout) == {"errno": number, "message": os.strerror(number)}
    assert not (tmp_path / "none").exists(), "a write never creates"


def test_refusal_by_a_real_kernel_comes_through() -> None:
    done = run(Path("/"), "/proc/self/oom_score_adj", b"nonsense")
    assert done.returncode == 1
    assert json.loads(done.stdout)["errno"] == errno.EINVAL


def test_write_is_one_write_of_a_real_kernels_file() -> None:
    before = Path("/proc/self/comm").read_text()
    host = KernelFiles("/")
    try:
        host.write("/proc/self/comm", b"npufleet-test")
        assert host.read("/proc/self/comm") == b"npufleet-test\n"
    finally:
        host.write("/proc/self/comm", before.strip().encode())
    with pytest.raises(OSError, match="Invalid argument"):
        host.write("/proc/self/oom_score_adj", b"nonsense")


def test_kernel_that_takes_a_part_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "attribute").write_bytes(b"")
    monkeypatch.setattr(os, "write", lambda _descriptor, data: len(data) - 1)
    with pytest.raises(OSError, match="took 2 of 3 bytes") as caught:
        KernelFiles(tmp_path).write("/attribute", b"abc")
    assert caught.value.errno == errno.EIO


def test_data_may_come_from_standard_input(tmp_path: Path) -> None:
    (tmp_path / "attribute").write_bytes(b"")
    command = [sys.executable, "-I", "-S", child.__file__, str(tmp_path), "/attribute"]
    assert subprocess.run(command, input=b"a\0b", timeout=30, check=False).returncode == 0
    assert (tmp_path / "attribute").read_bytes() == b"a\0b"


@pytest.mark.parametrize("arguments", [[], ["/"], ["/", "/x", "y", "z"]])
def test_wrong_call_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert child.main(arguments) == 2
    assert "usage" in capsys.readouterr().err


def test_every_sequence_of_bytes_survives_the_argument() -> None:
    with at_least(FLOOR, "bytes through an argument") as examples:

        @settings(max_examples=2100, deadline=None, database=None)
        @given(st.binary(max_size=64))
        def check(data: bytes) -> None:
            examples.one()
            argument = child.escape(data)
            assert argument.isascii()
            assert argument.isprintable()
            assert child.unescape(argument) == data

        check()


def test_child_of_a_real_kernel_loads_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "attribute").write_bytes(b"")
    command = KernelFiles(tmp_path).write_command("/attribute", b"x")
    assert command is not None
    told = subprocess.run([command[0], "-X", "importtime", *command[1:]], capture_output=True, timeout=30, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in told.stderr.decode().splitlines()}
    assert "os" in loaded
    assert not loaded & {"socket", "json", "pathlib", "typing", "re", "site", "subprocess"}
