"""The command line: each exit code, wrong usage, stdin, help that teaches."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from cli.lint import command, linter
from cli.lint.formats import FORMATS
from tests.builders.linting import CONFIG_MAP, POLICY, found_in, run_lint

ROOT = Path(__file__).parents[4]
FAULTY = POLICY.replace("RBLN-CA25", "RBLN-CA2")


def file_of(top: Path, text: str) -> Path:
    path = top / "policy.yaml"
    path.write_text(text)
    return path


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_no_faults_end_with_0(tmp_path: Path) -> None:
    ended = run_lint(file_of(tmp_path, POLICY))
    assert (ended.code, ended.out, ended.err) == (0, "1 object in 1 file: no faults\n", "")


def test_errors_end_with_1(tmp_path: Path) -> None:
    assert run_lint(file_of(tmp_path, FAULTY)).code == 1


def test_nothing_to_lint_is_told_and_fails_where_warnings_count(tmp_path: Path) -> None:
    (tmp_path / "policy.txt").write_text(FAULTY)
    ended = run_lint(tmp_path)
    assert ended.code == 0
    assert "there is no object here; look at the path" in ended.out
    assert run_lint("--strict", tmp_path).code == 1


def test_output_that_finds_no_room_is_one_line_and_no_verdict(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cli.main", "lint", str(file_of(tmp_path, FAULTY))]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    assert done.returncode == 3
    assert done.stderr == "npufleet lint: the output could not be written: No space left on device\n"


def test_forges_are_told_of_files_by_their_place_in_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "clusters" / "prod"
    below.mkdir(parents=True)
    file_of(below, FAULTY)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.chdir(below)
    assert "::error file=clusters/prod/policy.yaml,line=" in run_lint("--format", "github", "policy.yaml").out
    assert '"uri": "clusters/prod/policy.yaml"' in run_lint("--format", "sarif", "policy.yaml").out
    assert run_lint("policy.yaml").out.startswith("policy.yaml:")


def test_id_that_yaml_takes_for_a_number_is_written_as_ids_are() -> None:
    wrong = POLICY.replace("products: [RBLN-CA25]", "vendors: [0x10de]\n      devices: [0x26b9]")
    assert 'write "26b9": ids have no 0x' in [one.violation.fix for one in found_in(wrong)]


def test_warnings_end_with_0_and_with_1_where_they_count(tmp_path: Path) -> None:
    path = file_of(tmp_path, f"{CONFIG_MAP}data: {{a: 12:30}}\n")
    ended = run_lint(path)
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "1 object in 1 file: 0 errors, 1 warning")
    assert run_lint("--strict", path).code == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "say what to lint"),
        (["x.yaml"], "x.yaml: No such file or directory"),
        (["x\0.yaml"], "null"),
        (["-", "x.yaml"], "- stands alone"),
        (["-", "--base", "HEAD"], "--base needs files"),
        (["--kustomize", "x", "x.yaml"], "do not go together"),
        (["--fix", "-"], "--fix changes files"),
        (["--fix", "--kustomize", "x"], "--fix changes files"),
        (["--write-baseline", "x.yaml"], "--write-baseline needs --baseline FILE"),
        (["--write-baseline", "--baseline", "b", "--fix", "x.yaml"], "do not go together"),
        (["--yes", "x.yaml"], "belong to --fix"),
        (["--diff", "x.yaml"], "belong to --fix"),
        (["--k8s-version", "latest", "x.yaml"], "--k8s-version is a version such as 1.37"),
    ],
)
def test_wrong_usage_ends_with_2(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run_lint(*arguments)
    assert ended.code == 2
    assert says in ended.err
    assert ended.out == ""


@pytest.mark.parametrize("arguments", [["--format", "xml", "."], ["--nonsense", "."], ["--base"]])
def test_options_that_do_not_exist_end_with_2(arguments: list[str]) -> None:
    ended = run_lint(*arguments)
    assert ended.code == 2
    assert "usage: npufleet" in ended.err


def test_a_bug_ends_with_3_and_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(linter, "judge_change", broken)
    ended = run_lint(file_of(tmp_path, POLICY))
    assert ended.code == 3
    assert "ZeroDivisionError: oops" in ended.err
    assert "this is a bug in npufleet" in ended.err


def test_stdin_is_a_whole_set(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, FAULTY.encode())
    ended = run_lint("-")
    assert ended.code == 1
    assert ended.out.startswith("stdin:10:18: error: NPUNodePolicy/atoms: ")
    stdin(monkeypatch, b"")
    assert run_lint("-").out.startswith("stdin: warning: there is no object here; look at what writes to it")
    stdin(monkeypatch, b"\xff\xfe\x00")
    assert run_lint("-").code == 1


def test_definitions_and_groups_are_taken_from_the_command_line(tmp_path: Path) -> None:
    path = file_of(tmp_path, "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: x}\n")
    assert run_lint(path).code == 1
    assert run_lint("--allow-group", "example.org", path).code == 0
    definition = tmp_path / "crds"
    definition.mkdir()
    (definition / "x.yaml").write_text(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.example.org}\n"
        "spec:\n  group: example.org\n  names: {kind: Thing}\n  versions:\n  - name: v1\n    schema:\n"
        "      openAPIV3Schema: {type: object, required: [spec]}\n"
    )
    ended = run_lint("--crds", definition, path)
    assert ended.code == 1
    assert "spec: Required value [NPF-K8S-004]" in ended.out


def test_help_teaches() -> None:
    ended = run_lint("--help")
    assert ended.code == 0
    for text in (
        "examples:", "exit codes:", "--base origin/main", "npufleet explain RULE", "--kustomize overlays/prod",
        "helm template", "pip install 'npufleet[manifests]'", "--allow-group", "did you",
        "stops at the first kind of fault",
    ):  # fmt: skip
        assert text in ended.out, text


def test_every_format_that_is_offered_is_there() -> None:
    assert tuple(FORMATS) == command.FORMAT_NAMES


def test_other_commands_do_not_pay_for_the_rules() -> None:
    script = "import sys; from cli.main import build_parser; build_parser(); sys.exit('cel' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, timeout=60).returncode == 0
