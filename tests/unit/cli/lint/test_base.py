"""Beside a commit: changes that are forbidden, and what was wrong before, in a real Git repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.builders.linting import POLICY, Repository, found_in, run_lint
from webhooks.rules import cel_rules, schema_rules

FAULTY = POLICY.replace("RBLN-CA25", "RBLN-CA2")
WORSE = FAULTY.replace("mode: Passthrough", "mode: passthrough")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_what_was_wrong_before_is_a_warning_and_what_is_new_an_error(repository: Repository) -> None:
    repository.commit(policy=FAULTY)
    path = repository.write("policy", WORSE)
    alone = run_lint(path)
    assert (alone.code, alone.out.count(": error:")) == (1, 2)
    beside = run_lint("--base", "HEAD", path)
    assert beside.code == 1
    assert [line.split(": ")[1] for line in beside.out.splitlines()[:2]] == ["warning", "error"]
    assert "it was there before" in beside.out.splitlines()[0]
    repository.write("policy", FAULTY.replace("name: atoms", "name: atoms\n  labels: {a: b}"))
    assert run_lint("--base", "HEAD", path).code == 0
    assert run_lint("--base", "HEAD", "--strict", path).code == 1


def test_the_base_is_a_commit_and_not_the_work_tree(repository: Repository) -> None:
    first = repository.commit(policy=POLICY)
    repository.commit(policy=FAULTY)
    path = repository.top / "policy.yaml"
    assert run_lint("--base", first, path).code == 1
    assert run_lint("--base", "HEAD", path).code == 0
    assert run_lint("--base", "HEAD~1", path).code == 1
    assert run_lint("--base", "main", path).code == 0


def test_an_object_that_moved_to_another_file_is_the_same_object(repository: Repository) -> None:
    repository.commit(old__policy=FAULTY, other=POLICY.replace("atoms", "others"))
    (repository.top / "old" / "policy.yaml").unlink()
    repository.write("new__moved", FAULTY)
    assert run_lint("--base", "HEAD", repository.top).code == 0
    # The same file at the base is all that a file is compared with.
    assert run_lint("--base", "HEAD", repository.top / "new" / "moved.yaml").code == 1


def test_a_new_object_is_judged_as_one(repository: Repository) -> None:
    repository.commit(other=POLICY)
    path = repository.write("policy", FAULTY.replace("atoms", "new"))
    assert run_lint("--base", "HEAD", path).code == 1


def test_a_directory_of_the_repository_is_compared_with_itself(repository: Repository) -> None:
    repository.commit(a__policy=FAULTY, b__policy=POLICY.replace("atoms", "b"))
    assert run_lint("--base", "HEAD", repository.top / "a").code == 0
    assert run_lint("--base", "HEAD", repository.top / "b").code == 0


def test_a_link_to_the_repository_leads_there(repository: Repository, tmp_path: Path) -> None:
    repository.commit(policy=FAULTY)
    (tmp_path / "link").symlink_to(repository.top)
    assert run_lint("--base", "HEAD", tmp_path / "link").code == 0


def test_the_present_directory_is_understood(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.commit(a__policy=FAULTY)
    monkeypatch.chdir(repository.top / "a")
    assert run_lint("--base", "HEAD", ".").code == 0
    assert run_lint("--base", "HEAD", "policy.yaml").code == 0
    assert run_lint("--base", "HEAD", "..").code == 0


@pytest.mark.parametrize("ref", ["nothing", "--help", "-x", "HEAD^{tree}", "a..b"])
def test_what_is_no_commit_is_wrong_usage(repository: Repository, ref: str) -> None:
    repository.commit(policy=POLICY)
    ended = run_lint(f"--base={ref}", repository.top)
    assert ended.code == 2
    assert "is no commit in this clone: fetch it first" in ended.err


@pytest.mark.parametrize("ref", ["", "HEAD:policy.yaml"])
def test_what_could_be_no_commit_is_not_asked_of_git(repository: Repository, ref: str) -> None:
    path = repository.write("policy", POLICY)
    ended = run_lint("--base", ref, path)
    assert ended.code == 2
    assert "name a branch, a tag or a commit" in ended.err


def test_a_shallow_clone_is_told_how_to_get_the_rest(repository: Repository, tmp_path: Path) -> None:
    repository.commit(policy=POLICY)
    repository.commit(policy=FAULTY)
    shallow = tmp_path / "shallow"
    clone = ["git", "clone", "--quiet", "--depth=1", f"file://{repository.top}", str(shallow)]
    subprocess.run(clone, check=True)
    ended = run_lint("--base", "HEAD~1", shallow)
    assert ended.code == 2
    assert "git fetch --unshallow" in ended.err


def test_a_path_outside_of_any_repository_is_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "apart").mkdir()
    (tmp_path / "apart" / "policy.yaml").write_text(POLICY)
    ended = run_lint("--base", "HEAD", tmp_path / "apart")
    assert ended.code == 2
    assert "--base needs a Git repository around" in ended.err


def test_paths_of_two_repositories_are_wrong_usage(repository: Repository, tmp_path: Path) -> None:
    repository.commit(policy=POLICY)
    other = Repository(tmp_path / "other")
    other.commit(policy=POLICY)
    ended = run_lint("--base", "HEAD", repository.top, other.top)
    assert ended.code == 2
    assert "--base knows one only" in ended.err


def test_without_git_the_command_says_so(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.commit(policy=POLICY)
    monkeypatch.setenv("PATH", str(repository.top))
    ended = run_lint("--base", "HEAD", repository.top)
    assert (ended.code, ended.err) == (3, "npufleet lint: git is not installed: --base reads the files of a commit\n")


def test_names_with_odd_characters_are_found_at_the_base(repository: Repository) -> None:
    (repository.top / 'a "b"\té.yaml').write_text(FAULTY)
    repository.commit()
    assert run_lint("--base", "HEAD", repository.top).code == 0


def test_a_broken_base_forbids_nothing(repository: Repository) -> None:
    repository.commit(policy="a: [\n", other="\x00")
    repository.write("policy", POLICY)
    (repository.top / "other.yaml").unlink()
    ended = run_lint("--base", "HEAD", repository.top)
    assert ended.code == 0
    assert (
        "note: policy.yaml could not be read in full as it was at the base: what is missing counts as new" in ended.out
    )


KUSTOMIZATION = "resources: [../base]\npatches:\n- path: patch.yaml\n"
PATCH = """\
apiVersion: npufleet.io/v1alpha1
kind: NPUNodePolicy
metadata: {name: atoms}
spec: {priority: 5}
"""


def test_a_kustomization_is_compared_with_what_it_made_at_the_base(repository: Repository) -> None:
    repository.commit(
        base__kustomization="resources: [policy.yaml]\n",
        base__policy=FAULTY,
        prod__kustomization=KUSTOMIZATION,
        prod__patch=PATCH,
    )
    prod = repository.top / "prod"
    assert run_lint("--kustomize", prod).code == 1
    assert run_lint("--kustomize", prod, "--base", "HEAD").code == 0
    repository.write("prod__patch", PATCH.replace("priority: 5", "priority: 5000"))
    ended = run_lint("--kustomize", prod, "--base", "HEAD")
    assert ended.code == 1
    assert ended.out.count(": error:") == 1
    assert "spec.priority" in ended.out


def test_a_kustomization_that_is_new_has_nothing_to_be_compared_with(repository: Repository) -> None:
    repository.commit(readme="a: b\n")
    repository.write("prod__kustomization", "resources: [policy.yaml]\n")
    repository.write("prod__policy", FAULTY)
    assert run_lint("--kustomize", repository.top / "prod", "--base", "HEAD").code == 1


def test_what_releases_leave_out_is_there_at_the_base(repository: Repository) -> None:
    repository.commit(base__kustomization="resources: [policy.yaml]\n", base__policy=FAULTY)
    (repository.top / ".gitattributes").write_text("* export-ignore\n")
    repository.commit(other=POLICY.replace("atoms", "others"))
    ended = run_lint("--base", "HEAD", "--kustomize", repository.top / "base")
    assert (ended.code, ended.err) == (0, "")
    assert "it was there before" in ended.out


def test_links_out_of_the_repository_are_left_out_of_the_base(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text(POLICY)
    (repository.top / "prod").mkdir()
    (repository.top / "prod" / "policy.yaml").symlink_to(
        os.path.relpath(tmp_path / "secret.yaml", repository.top / "prod")
    )
    repository.commit(prod__kustomization="resources: [policy.yaml]\n")
    (repository.top / "prod" / "policy.yaml").unlink()
    repository.write("prod__policy", POLICY)
    ended = run_lint("--kustomize", repository.top / "prod", "--base", "HEAD")
    assert ended.code == 0
    assert "note: HEAD is left out: kustomize cannot build it" in ended.err


def test_nothing_is_left_behind(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    repository.commit(prod__kustomization="resources: [policy.yaml]\n", prod__policy=POLICY)
    assert run_lint("--kustomize", repository.top / "prod", "--base", "HEAD").code == 0
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_rule_about_a_change_is_judged_where_the_old_object_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kind of the API has such a rule at present: one is put in place."""
    schema = schema_rules.schema_of
    frozen = {"rule": "self == oldSelf", "message": "driverName cannot be changed [NPF-NP-001]"}

    def with_rule(model: type) -> object:
        found = dict(schema(model))
        properties = dict(found["properties"])
        spec = dict(properties["spec"])
        spec["properties"] = dict(spec["properties"])
        name = dict(spec["properties"].get("driverName", {}))
        name["x-kubernetes-validations"] = [frozen]
        spec["properties"]["driverName"] = name
        return found | {"properties": properties | {"spec": spec}}

    monkeypatch.setattr(cel_rules, "schema_of", with_rule, raising=False)
    old = POLICY.replace("spec:\n", "spec:\n  driverName: a.example\n")
    new = POLICY.replace("spec:\n", "spec:\n  driverName: b.example\n")
    assert found_in(new) == []
    assert found_in(old, base=old) == []
    assert [one.violation.field for one in found_in(new, base=old)] == ["spec.driverName"]
