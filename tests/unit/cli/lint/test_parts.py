"""Parts of what is applied: patches, which are no objects yet, and objects that a build puts a namespace on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.linting import POLICY, Repository, rules_in, run_lint

PATCH = """\
apiVersion: npufleet.io/v1alpha1
kind: NPUNodePolicy
metadata:
  name: atoms
spec:
  priority: null
  nodeSelector: {}
"""


def overlay(top: Path, more: str) -> Path:
    (top / "patches").mkdir(parents=True)
    (top / "policy.yaml").write_text(POLICY)
    (top / "kustomization.yaml").write_text(f"resources: [policy.yaml]\n{more}")
    return top


@pytest.mark.parametrize("name", ["patches/patch.yaml", "patches"])
def test_a_patch_that_is_named_is_left_out_as_in_its_directory(tmp_path: Path, name: str) -> None:
    top = overlay(tmp_path / "ov", "patches: [{path: patches/patch.yaml}]\n")
    (top / "patches" / "patch.yaml").write_text(PATCH)
    ended = run_lint(top / name)
    assert ended.code == 0
    assert f"left out: a patch of {top / 'kustomization.yaml'}" in ended.out
    assert "NPF-ALL-003" not in ended.out


def test_a_list_of_json_patches_that_is_named_is_left_out(tmp_path: Path) -> None:
    top = overlay(tmp_path / "ov", "patches: [{path: patches/p.yaml, target: {kind: NPUNodePolicy}}]\n")
    (top / "patches" / "p.yaml").write_text("- {op: remove, path: /spec/priority}\n")
    ended = run_lint(top / "patches" / "p.yaml")
    assert (ended.code, "NPF-YML-010" in ended.out) == (0, True)


def test_a_kustomization_of_another_repository_above_is_not_asked(tmp_path: Path) -> None:
    top = overlay(tmp_path / "ov", "patches: [{path: patches/patch.yaml}]\n")
    (top / "patches" / "patch.yaml").write_text(PATCH)
    (top / "patches" / ".git").mkdir()
    assert run_lint(top / "patches" / "patch.yaml").code == 1


@pytest.mark.parametrize("name", ["values.yaml", "Chart.yaml", "templates/x.yaml"])
def test_files_of_a_chart_that_are_named_are_left_out(tmp_path: Path, name: str) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "x.yaml").write_text("a: {{ .Values.x }}\n")
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: x\n")
    (tmp_path / "values.yaml").write_text("x: 1\n")
    ended = run_lint(tmp_path / name)
    assert (ended.code, "of a Helm chart" in ended.out) == (0, True)


@pytest.mark.parametrize("text", [PATCH, POLICY.replace("spec:\n", "spec:\n  $patch: merge\n  priority: null\n")])
def test_the_null_of_a_patch_is_never_taken_out(tmp_path: Path, text: str) -> None:
    path = tmp_path / "patch.yaml"
    path.write_text(text)
    run_lint("--fix", "--yes", path)
    assert path.read_text() == text


def test_a_patch_above_which_a_kustomization_stands_is_never_mended(tmp_path: Path) -> None:
    top = overlay(tmp_path / "ov", "patches: [{path: patches/patch.yaml}]\n")
    whole = POLICY.replace("spec:\n", "spec:\n  priority: null\n")
    (top / "patches" / "patch.yaml").write_text(whole)
    run_lint("--fix", "--yes", top / "patches" / "patch.yaml")
    assert (top / "patches" / "patch.yaml").read_text() == whole


def test_a_namespace_that_a_build_puts_on_a_policy_is_nobodys_fault(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    faulty = POLICY.replace("RBLN-CA25", "RBLN-CA2")
    repository.commit(policy=faulty, kustomization="resources: [policy.yaml]\n")
    assert run_lint("--kustomize", repository.top).code == 1
    repository.write("kustomization", "namespace: team-a\nresources: [policy.yaml]\n")
    ended = run_lint("--base", "HEAD", "--kustomize", repository.top)
    assert (ended.code, "NPF-ALL-113" in ended.out) == (0, False)
    assert "it was there before" in ended.out


def test_an_object_of_the_whole_cluster_is_the_same_in_every_namespace() -> None:
    twice = POLICY + "---\n" + POLICY.replace("name: atoms", "name: atoms\n  namespace: team-a")
    assert "NPF-YML-008" in rules_in(twice)
