"""A baseline lets known faults pass and no new ones, and tells when some of them are gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders.linting import CONFIG_MAP, POLICY, run_lint

FAULTY = POLICY.replace("RBLN-CA25", "RBLN-CA2")
WORSE = FAULTY.replace("mode: Passthrough", "mode: passthrough")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    top = tmp_path / "files"
    top.mkdir()
    (top / "policy.yaml").write_text(FAULTY)
    return top


@pytest.fixture
def baseline(files: Path, tmp_path: Path) -> Path:
    path = tmp_path / "lint.json"
    ended = run_lint("--baseline", path, "--write-baseline", files)
    assert (ended.code, ended.out, ended.err) == (0, "", f"{path}: 1 known fault\n")
    return path


def test_known_faults_pass_and_are_counted(files: Path, baseline: Path) -> None:
    ended = run_lint("--baseline", baseline, files)
    assert (ended.code, ended.out) == (0, "1 object in 1 file: no faults, 1 more in the baseline\n")
    assert run_lint("--strict", "--baseline", baseline, files).code == 0


def test_new_faults_do_not_pass(files: Path, baseline: Path) -> None:
    (files / "policy.yaml").write_text(WORSE)
    ended = run_lint("--baseline", baseline, files)
    assert ended.code == 1
    assert ended.out.count(": error:") == 1
    assert "spec.devices[0].mode" in ended.out


def test_the_same_fault_in_another_object_or_with_another_value_is_new(files: Path, baseline: Path) -> None:
    (files / "other.yaml").write_text(FAULTY.replace("atoms", "others"))
    assert run_lint("--baseline", baseline, files).code == 1
    (files / "other.yaml").unlink()
    (files / "policy.yaml").write_text(FAULTY.replace("RBLN-CA2]", "RBLN-CA3]"))
    assert run_lint("--baseline", baseline, files).code == 1


def test_a_fault_that_only_moved_is_known(files: Path, baseline: Path) -> None:
    (files / "policy.yaml").unlink()
    rule = "  - name: first\n    match: {products: [RBLN-CA22]}\n    mode: Container\n"
    (files / "moved.yaml").write_text("# new\n" + FAULTY.replace("  devices:\n", f"  devices:\n{rule}"))
    assert run_lint("--baseline", baseline, files).code == 0


def test_a_second_fault_like_a_known_one_is_new(files: Path, baseline: Path) -> None:
    (files / "policy.yaml").write_text(FAULTY.replace("[RBLN-CA2]", "[RBLN-CA25, RBLN-CA2, RBLN-CA2]"))
    ended = run_lint("--baseline", baseline, files)
    assert ended.code == 1


def test_faults_that_are_gone_are_told_and_count_where_warnings_do(files: Path, baseline: Path) -> None:
    (files / "policy.yaml").write_text(POLICY)
    ended = run_lint("--baseline", baseline, files)
    assert ended.code == 0
    assert f"1 of the faults in {baseline} are gone: write it anew with --write-baseline" in ended.out
    assert run_lint("--strict", "--baseline", baseline, files).code == 1
    run_lint("--baseline", baseline, "--write-baseline", files)
    assert run_lint("--strict", "--baseline", baseline, files).code == 0


def test_faults_of_files_are_known_by_the_file(files: Path, tmp_path: Path) -> None:
    (files / "policy.yaml").write_text("a: [\n")
    path = tmp_path / "lint.json"
    run_lint("--baseline", path, "--write-baseline", files)
    assert run_lint("--baseline", path, files).code == 0
    (files / "policy.yaml").rename(files / "other.yaml")
    assert run_lint("--baseline", path, files).code == 1


def test_a_baseline_is_written_so_that_git_shows_what_changed(files: Path, tmp_path: Path) -> None:
    (files / "policy.yaml").write_text(f"{WORSE}---\n{CONFIG_MAP}data: {{a: 1}}\n")
    path = tmp_path / "lint.json"
    run_lint("--baseline", path, "--write-baseline", files)
    first = path.read_text()
    lines = first.splitlines()
    assert len(lines) == 5
    assert lines == [lines[0], *sorted(lines[1:4]), lines[4]]
    assert {entry["rule"] for entry in json.loads(first)["known"]} == {"NPF-ALL-004", "NPF-K8S-003", "NPF-NP-101"}
    run_lint("--baseline", path, "--write-baseline", files)
    assert path.read_text() == first


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"version": 2, "known": []}', '{"version": 1, "known": [{}]}', '{"version": 1, "known": 5}'],
)
def test_a_file_that_is_no_baseline_is_wrong_usage(files: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "lint.json"
    path.write_text(text)
    ended = run_lint("--baseline", path, files)
    assert ended.code == 2
    assert "is no baseline that can be read" in ended.err
    assert "indices" not in ended.err
    assert "('" not in ended.err


def test_a_baseline_that_is_not_there_is_wrong_usage(files: Path, tmp_path: Path) -> None:
    ended = run_lint("--baseline", tmp_path / "lint.json", files)
    assert ended.code == 2
    assert "make one with --baseline" in ended.err


def test_a_baseline_that_cannot_be_written_is_told(files: Path) -> None:
    ended = run_lint("--baseline", files / "policy.yaml" / "x", "--write-baseline", files)
    assert ended.code == 3
    assert "cannot be written" in ended.err
