"""Kinds of other groups: what kubernetes-validate alone would let pass, and what happens when it is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cli.errors import CommandError
from cli.lint.linter import Options, lint
from cli.lint.sources import Source
from tests.builders.linting import CONFIG_MAP, NOW, POLICY, found_in, options, places_in, rules_in, run_lint

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: serving
spec:
  selector: {matchLabels: {app: x}}
  template:
    metadata: {labels: {app: x}}
    spec:
      containers:
      - name: model
        image: example.invalid/model:1
"""
CRD = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: Thing, plural: things, singular: thing, listKind: ThingList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            required: [size]
            properties:
              size: {type: integer, minimum: 1}
              port: {x-kubernetes-int-or-string: true}
              any: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""
THING = "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: x}\n"


def test_objects_of_kubernetes_that_are_right_have_no_faults() -> None:
    assert rules_in(DEPLOYMENT) == []
    assert rules_in(CRD) == []


def test_every_fault_of_an_object_is_told_and_not_the_first_alone() -> None:
    text = DEPLOYMENT.replace("  selector:", "  replica: 2\n  strategi: {}\n  paused: 'no'\n  selector:")
    text = text.replace(
        "        image: example.invalid/model:1", "        ports: [{containerPort: '80'}]\n        env: x"
    )
    assert places_in(text) == [
        "6:3 NPF-K8S-002",
        "7:3 NPF-K8S-002",
        "8:11 NPF-K8S-003",
        "15:33 NPF-K8S-003",
        "16:14 NPF-K8S-003",
    ]


def test_case_21_what_is_not_known_does_not_pass() -> None:
    """A validator that warns about kinds that it does not know and ends with 0 lets every typo through."""
    assert rules_in(POLICY.replace("NPUNodePolicy", "NPUNodePolcy")) == ["NPF-YML-015"]
    assert rules_in(POLICY.replace("mode:", "mod:")) == ["NPF-ALL-003", "NPF-ALL-001"]
    assert rules_in(POLICY.replace("  nodeSelector: {}\n", "  nodeSelector: {}\n  nodeSelector: {}\n")) == [
        "NPF-YML-003"
    ]
    assert rules_in(DEPLOYMENT.replace("Deployment", "Deploymint")) == ["NPF-K8S-001"]
    assert rules_in(DEPLOYMENT.replace("apps/v1", "apps/v7")) == ["NPF-K8S-001"]
    assert rules_in(THING) == ["NPF-K8S-001"]


@pytest.mark.parametrize("mutation", ["kind: NPUNodePolcy", "kind: NPUNodePolicy\nkind: NPUNodePolicy", "kind: Thing"])
def test_case_21_ends_with_1(tmp_path: Path, mutation: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.replace("kind: NPUNodePolicy", mutation))
    assert run_lint(path).code == 1


def test_a_group_that_only_begins_like_one_of_kubernetes_is_not_taken_for_it() -> None:
    """kubernetes-validate looks at the first label of a group only, and calls this one a wrong version."""
    text = "apiVersion: resource.example.com/v1\nkind: DeviceClass\nmetadata: {name: x}\nspec: {anything: 1}\n"
    (found,) = found_in(text)
    assert found.rule == "NPF-K8S-001"
    assert "resource.k8s.io/v1" not in found.violation.message
    assert rules_in(text, asked=options(allowed=("resource.example.com",))) == []


def test_a_version_that_is_gone_is_told_with_the_one_that_is_there() -> None:
    text = "apiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata: {name: x}\nspec: {}\n"
    (found,) = found_in(text)
    assert (found.rule, found.spot.line, found.violation.fix) == ("NPF-K8S-001", 1, "it is in policy/v1")


def test_a_misspelt_kind_is_told_with_near_ones() -> None:
    (found,) = found_in(CONFIG_MAP.replace("ConfigMap", "ConfgMap"))
    assert found.violation.fix.startswith("did you mean ConfigMap")


def test_kinds_are_known_by_a_definition_in_the_same_set_or_beside_it() -> None:
    good = f"{THING}spec: {{size: 3, port: http, any: {{x: [z]}}}}\n"
    bad = f"{THING}spec: {{size: 0, prt: 5, any: {{}}}}\nstatus: {{}}\n"
    assert rules_in(f"{CRD}---\n{good}") == []
    wrong = found_in(f"{CRD}---\n{bad}")
    assert sorted(one.violation.field for one in wrong) == ["spec.prt", "spec.size", "status"]
    beside = lint([Source("a.yaml", bad)], options(), crds=[Source("crd.yaml", CRD)])
    assert [one.rule for one in beside.findings] == ["NPF-K8S-003", "NPF-K8S-002", "NPF-K8S-002"]
    assert rules_in(f"{CRD}---\n{THING}") == ["NPF-K8S-004"]


def test_built_in_kinds_can_be_passed_over() -> None:
    asked = options(skip_built_in=True)
    assert rules_in(f"{DEPLOYMENT.replace('spec:', 'spc:')}---\n{POLICY}", asked=asked) == []
    assert rules_in(POLICY.replace("mode:", "mod:"), asked=asked) != []


def test_an_object_without_a_name_is_told() -> None:
    assert rules_in("apiVersion: v1\nkind: ConfigMap\nmetadata: {}\n") == ["NPF-YML-009"]
    assert rules_in("apiVersion: v1\nkind: ConfigMap\n") == ["NPF-YML-009"]


def test_numbers_for_label_values_are_told() -> None:
    text = CONFIG_MAP + "  labels: {version: 1.10, 'on': yes, fine: \"1\", long-: a b}\n"
    assert places_in(text) == ["5:21 NPF-K8S-003", "5:33 NPF-K8S-003", "5:56 NPF-YML-009", "5:56 NPF-YML-009"]


@pytest.fixture
def without_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes_validate", None)


@pytest.mark.usefixtures("without_schemas")
def test_missing_schemas_are_named_with_the_command_that_installs_them(tmp_path: Path) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(f"{POLICY}---\n{CONFIG_MAP}")
    ended = run_lint(path)
    assert ended.code == 2
    assert "pip install 'npufleet[manifests]'" in ended.err
    assert "--skip-built-in" in ended.err


@pytest.mark.usefixtures("without_schemas")
def test_missing_schemas_are_no_matter_where_nobody_needs_them(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    assert run_lint(path).code == 0
    path.write_text(f"{POLICY}---\n{CONFIG_MAP}")
    assert run_lint("--skip-built-in", path).code == 0


@pytest.mark.parametrize("version", ["1.34", "v1.37.2", "1.36.0"])
def test_a_version_of_kubernetes_can_be_asked_for(version: str) -> None:
    assert lint([Source("a.yaml", DEPLOYMENT)], Options(NOW, version)).findings == []


@pytest.mark.parametrize("version", ["1.9", "2.0", "latest", "1", ""])
def test_a_version_without_schemas_is_wrong_usage_that_names_those_there_are(version: str) -> None:
    """Compared as texts, 1.9 would be newer than 1.37."""
    with pytest.raises(CommandError, match=r"1\.34.*1\.37") as raised:
        lint([Source("a.yaml", DEPLOYMENT)], Options(NOW, version))
    assert raised.value.exit_code == 2


def test_an_older_version_knows_fewer_kinds() -> None:
    text = "apiVersion: admissionregistration.k8s.io/v1\nkind: MutatingAdmissionPolicy\nmetadata: {name: x}\nspec: {}\n"
    told = {
        version: [one.rule for one in lint([Source("a.yaml", text)], Options(NOW, version)).findings]
        for version in ("1.34", "1.37")
    }
    assert "NPF-K8S-001" in told["1.34"]
    assert "NPF-K8S-001" not in told["1.37"]
