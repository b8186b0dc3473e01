"""What lies in a directory: links, pipes, templates, patches, a thousand files; nothing ends the linter."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cli.lint.sources import collect
from tests.builders.linting import CONFIG_MAP, POLICY, run_lint

BROKEN = POLICY.replace("RBLN-CA25", "RBLN-CA2")


def write(top: Path, **files: str) -> None:
    for name, text in files.items():
        path = top / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(top: Path) -> list[str]:
    return [str(Path(source.name).relative_to(top)) for source in collect([str(top)]).sources]


def test_every_yaml_and_json_file_below_is_taken_in_order(tmp_path: Path) -> None:
    write(tmp_path, b=POLICY, a__z=POLICY, a__b__c=POLICY)
    (tmp_path / "x.yml").write_text(POLICY)
    (tmp_path / "y.json").write_text("{}")
    (tmp_path / "readme.md").write_text("no")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.yaml").write_text(POLICY)
    (tmp_path / ".x.yaml").write_text(POLICY)
    assert names(tmp_path) == ["b.yaml", "x.yml", "y.json", "a/z.yaml", "a/b/c.yaml"]


def test_a_file_that_is_named_twice_is_taken_once(tmp_path: Path) -> None:
    write(tmp_path, a=POLICY)
    path = str(tmp_path / "a.yaml")
    assert len(collect([path, path, str(tmp_path)]).sources) == 1


def test_loops_of_links_end(tmp_path: Path) -> None:
    write(tmp_path, a__x=POLICY)
    (tmp_path / "a" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "a" / "self").symlink_to("self")
    (tmp_path / "round.yaml").symlink_to("round.yaml")
    (tmp_path / "gone.yaml").symlink_to("nothing")
    found = collect([str(tmp_path)])
    assert [Path(source.name).name for source in found.sources] == ["x.yaml"]
    assert sorted((Path(one.spot.file).name, one.rule) for one in found.findings) == [
        ("gone.yaml", "NPF-YML-001"),
        ("round.yaml", "NPF-YML-001"),
    ]


def test_linked_directories_are_followed_once(tmp_path: Path) -> None:
    write(tmp_path, real__x=POLICY)
    (tmp_path / "one").symlink_to("real", target_is_directory=True)
    (tmp_path / "two").symlink_to("real", target_is_directory=True)
    assert len(collect([str(tmp_path)]).sources) == 1


def test_a_pipe_is_a_finding_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (found,) = collect([str(tmp_path)]).findings
    assert found.rule == "NPF-YML-001"
    assert "pipe" in found.violation.message
    assert run_lint(tmp_path / "pipe.yaml").code == 1


def test_a_file_that_may_not_be_read_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a=POLICY, b=POLICY)

    def refuse(path: Path, *arguments: object) -> int:
        if Path(path).name == "a.yaml":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments)  # type: ignore[arg-type]

    real = os.open
    monkeypatch.setattr(os, "open", refuse)
    found = collect([str(tmp_path)])
    assert [Path(source.name).name for source in found.sources] == ["b.yaml"]
    assert [one.violation.message for one in found.findings] == ["the file cannot be read: Permission denied"]


def test_templates_of_a_chart_are_left_out_and_told(tmp_path: Path) -> None:
    write(tmp_path, chart__Chart="apiVersion: v2\nname: x\n", chart__values="a: 1\n", chart__templates__x="{{ x }}")
    write(tmp_path, chart__crds__policy=POLICY, loose="a: {{ .Values.x }}\n{{- if x }}\n")
    ended = run_lint(tmp_path)
    assert ended.code == 0
    assert "templates of a Helm chart; lint what `helm template` writes" in ended.out
    assert "loose.yaml: warning: left out: it looks like a template; render it first" in ended.out
    assert "1 object" in ended.out
    assert run_lint("--strict", tmp_path).code == 1
    assert run_lint(tmp_path / "loose.yaml").code == 1


def test_patches_of_a_kustomization_are_left_out_and_told(tmp_path: Path) -> None:
    kustomization = (
        "resources: [policy.yaml]\npatches:\n- path: patch.yaml\n- patch: |\n    - {op: remove, path: /spec}\n"
        "  target: {kind: NPUNodePolicy}\npatchesStrategicMerge: [old.yaml]\nreplacements: [{path: ../gone.yaml}]\n"
    )
    part = "apiVersion: npufleet.io/v1alpha1\nkind: NPUNodePolicy\nmetadata: {name: atoms}\nspec: {priority: 5}\n"
    write(tmp_path, x__kustomization=kustomization, x__policy=POLICY, x__patch=part, x__old=part)
    ended = run_lint(tmp_path)
    assert ended.code == 0
    assert ended.out.count("left out: a patch of") == 2
    assert f"--kustomize {tmp_path / 'x'}" in ended.out


def test_other_yaml_in_a_directory_is_passed_over_and_told(tmp_path: Path) -> None:
    write(tmp_path, mkdocs="site_name: x\nnav: []\n", policy=POLICY)
    ended = run_lint(tmp_path)
    assert ended.code == 0
    assert "warning: no Kubernetes object: apiVersion is missing and kind is missing; passed over" in ended.out
    assert run_lint(tmp_path / "mkdocs.yaml").code == 1


def test_a_document_that_lacks_only_its_kind_is_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path, policy=POLICY.replace("kind: NPUNodePolicy\n", ""))
    assert run_lint(tmp_path).code == 1


def test_an_object_twice_in_different_files_is_a_warning(tmp_path: Path) -> None:
    write(tmp_path, prod=POLICY, test=POLICY)
    ended = run_lint(tmp_path)
    assert ended.code == 0
    assert f"NPUNodePolicy/atoms is there twice; it is in {tmp_path / 'prod.yaml'}:4:9 first" in ended.out


def test_a_name_that_is_no_text_is_told_all_the_same(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.yaml")).write_text(BROKEN)
    for form in ("text", "json", "sarif", "junit", "github"):
        ended = run_lint("--format", form, tmp_path)
        assert ended.code == 1
        ended.out.encode()


def test_a_thousand_files_in_one_directory_are_linted(tmp_path: Path) -> None:
    for n in range(1000):
        (tmp_path / f"{n}.yaml").write_text(CONFIG_MAP.replace("settings", f"settings-{n}"))
    ended = run_lint(tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "1,000 objects in 1,000 files: no faults\n"


def test_a_file_that_vanishes_between_two_looks_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a=POLICY)
    real = os.open

    def vanish(path: Path, *arguments: object) -> int:
        Path(path).unlink(missing_ok=True)
        return real(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", vanish)
    (found,) = collect([str(tmp_path)]).findings
    assert found.violation.message == "the file cannot be read: No such file or directory"


def test_progress_is_shown_on_a_terminal_only(tmp_path: Path) -> None:
    write(tmp_path, a=POLICY)
    read, written = os.openpty()
    said: list[bytes] = []

    def reader() -> None:
        while True:
            try:
                data = os.read(read, 1024)
            except OSError:
                return
            if not data:
                return
            said.append(data)

    thread = threading.Thread(target=reader, daemon=True)
    thread.start()
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "lint", str(tmp_path)],
        cwd=Path(__file__).parents[4],
        stdout=subprocess.PIPE,
        stderr=written,
        check=False,
        timeout=60,
    )
    os.close(written)
    thread.join(10)
    os.close(read)
    assert done.returncode == 0
    assert b"reading" in b"".join(said)
    assert done.stdout == b"1 object in 1 file: no faults\n"
