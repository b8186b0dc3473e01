"""Rules between objects: what is known depends on whether the files are all that is applied."""

from __future__ import annotations

from pathlib import Path

from tests.builders.linting import POLICY, found_in, options, rules_in, run_lint

VGPU = """\
apiVersion: npufleet.io/v1alpha1
kind: NPUNodePolicy
metadata: {name: halves}
spec:
  nodeSelector: {matchLabels: {pool: vgpu}}
  devices:
  - name: cards
    match: {products: [L40S]}
    mode: VGPU
    vgpu: {profileMapRef: {name: halves}}
"""
MAP = """\
apiVersion: npufleet.io/v1alpha1
kind: VGPUProfileMap
metadata: {name: halves}
spec:
  gpus:
  - match: {products: [L40S]}
    layout: [{profile: L40S-24Q, count: 2}]
"""
PART = options(is_whole=False)


def test_a_map_that_nobody_defines_is_an_error_in_a_whole_set() -> None:
    assert rules_in(f"{VGPU}---\n{MAP}") == []
    assert rules_in(VGPU) == ["NPF-NP-151"]
    assert rules_in(f"{VGPU}---\n{MAP.replace('name: halves', 'name: halfs')}") == ["NPF-NP-151"]


def test_a_map_that_is_not_in_a_part_may_exist() -> None:
    assert rules_in(VGPU, asked=PART) == []


def test_a_map_that_is_broken_is_there() -> None:
    assert rules_in(f"{VGPU}---\n{MAP.replace('count: 2', 'count: x')}") == ["NPF-ALL-002"]


def test_a_policy_that_is_broken_refers_to_its_map_all_the_same() -> None:
    assert rules_in(VGPU.replace("nodeSelector:", "nodeSelectr:"), asked=PART) == ["NPF-ALL-003", "NPF-ALL-001"]


QUOTA = """\
apiVersion: npufleet.io/v1alpha1
kind: VNPUQuota
metadata: {name: a, namespace: team}
spec: {limits: {cores: 100}}
"""
TEAM = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team, labels: {npufleet.io/quota: LABEL}}\n"


def test_a_namespace_among_the_files_is_asked_for_its_label_and_no_other() -> None:
    assert rules_in(f"{QUOTA}---\n{TEAM.replace('LABEL', 'enabled')}") == []
    assert rules_in(QUOTA) == []
    assert rules_in(f"{QUOTA}---\n{TEAM.replace('LABEL', 'disabled')}") == ["NPF-VQ-122"]
    assert rules_in(f"{QUOTA}---\n{TEAM.replace(', labels: {npufleet.io/quota: LABEL}', '')}") == ["NPF-VQ-122"]
    assert rules_in(f"{QUOTA}---\n{TEAM.replace('name: team', 'name: other')}") == []


def test_files_alone_are_a_part_and_a_directory_is_a_whole(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(VGPU)
    ended = run_lint(tmp_path / "policy.yaml")
    assert ended.code == 0
    assert "note: these files are taken for a part of what is applied" in ended.out
    assert run_lint(tmp_path).code == 1
    (tmp_path / "map.yaml").write_text(MAP)
    ended = run_lint(tmp_path / "policy.yaml", tmp_path / "map.yaml")
    assert ended.out == "2 objects in 2 files: no faults\n"
    assert run_lint(tmp_path).code == 0


def test_a_file_without_references_is_not_called_a_part(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    assert "note" not in run_lint(tmp_path / "policy.yaml").out


def test_a_map_that_a_change_takes_away_is_an_error_though_the_policy_stays_as_it_is() -> None:
    both = f"{VGPU}---\n{MAP}"
    assert rules_in(both, base=both) == []
    (found,) = found_in(VGPU, base=both)
    assert (found.rule, found.is_error) == ("NPF-NP-151", True)
    (found,) = found_in(VGPU, base=VGPU)
    assert (found.rule, found.is_error) == ("NPF-NP-151", False)
