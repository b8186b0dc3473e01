"""Programs of the host: found below its root, run in a session of their own, with the locks that they inherit."""

import os
import sys
from pathlib import Path

import pytest

from node_host.host import KernelFiles


def program(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_what_it_prints_and_how_it_ends_come_back(tmp_path: Path) -> None:
    tool = program(tmp_path / "tool", "import sys; print(sys.argv[1:]); print('bad', file=sys.stderr); sys.exit(3)")
    result = KernelFiles("/").run_tool(tool, ["-e", "0000:02:00.0"])
    assert result.status == 3
    assert "['-e', '0000:02:00.0']" in result.output and "bad" in result.output


def test_a_program_that_the_host_has_not_is_told(tmp_path: Path) -> None:
    for host in (KernelFiles("/"), KernelFiles(tmp_path)):
        with pytest.raises(FileNotFoundError):
            host.run_tool("/usr/lib/nvidia/no-such-tool", [])


def test_it_has_a_session_of_its_own_and_keeps_what_it_inherits(tmp_path: Path) -> None:
    tool = program(
        tmp_path / "tool",
        "import os, sys; print(os.getsid(0) == os.getpid()); os.fstat(int(sys.argv[1])); print('open')",
    )
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), False)
        result = KernelFiles("/").run_tool(tool, [str(lock.fileno())], inherit=[lock.fileno()])
    assert result.output.split() == ["True", "open"]


def test_only_the_end_of_a_long_output_is_kept(tmp_path: Path) -> None:
    tool = program(tmp_path / "tool", "print('x' * 1_000_000); print('the end')")
    result = KernelFiles("/").run_tool(tool, [])
    assert result.output.endswith("the end\n") and len(result.output) <= 64 << 10
