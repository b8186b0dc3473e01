"""`npufleet explain` tells what fields mean, and what an object says in full."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from cli.errors import CommandError, ExitCode
from cli.explain import explain_object, explain_subject, register
from crds.effective import effective_spec
from crds.generator.fields import field_docs
from crds.models.kinds import BY_NAME, KINDS
from crds.yaml_documents import Document, read_documents
from tests.builders.objects import device_rule, node_policy
from tests.builders.samples import FOLDER, REFUSED_BY_SCHEMA, VALID, InvalidSample


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    parsed = parser.parse_args(["explain", *arguments])
    return int(parsed.run(parsed))


@pytest.mark.parametrize("word", ["NPUNodePolicy", "npunodepolicy", "npunodepolicies", "npunp", "NPUNP"])
def test_a_kind_goes_by_each_of_its_names(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(word) == ExitCode.CLEAN
    assert "NPUNodePolicy (npufleet.io/v1alpha1, cluster-scoped; npunodepolicies, npunp)" in capsys.readouterr().out


def test_every_field_of_every_kind_is_explained() -> None:
    for kind in KINDS:
        for doc in field_docs(kind):
            told = " ".join(" ".join(explain_subject(f"{kind.short_name}.{doc.path}")).split())
            assert " ".join(doc.meaning.split()) in told
            if doc.effective and doc.path.startswith("spec"):
                assert doc.effective in told


def test_a_field_is_found_without_spec_and_without_list_marks() -> None:
    for path in ("spec.devices[].match.vendors", "spec.devices.match.vendors", "devices.match.vendors"):
        assert explain_subject(f"npunp.{path}")[0] == "NPUNodePolicy.spec.devices[].match.vendors"


@pytest.mark.parametrize(
    ("subject", "hint"),
    [
        ("npunq", "did you mean"),
        ("NPUNodePolice", "did you mean NPUNodePolicy"),
        ("widget", "there are NPUNodePolicy, VGPUProfileMap, VNPUQuota, NPUNodeState"),
        ("npunp.spec.prioriti", "did you mean spec.priority"),
        ("npunp.rolout", "did you mean spec.rollout"),
        ("npunp.spec.devices.mach", "did you mean spec.devices.match"),
        ("npunp.spec.devices.quite-other", "has no field"),
    ],
)
def test_an_unknown_name_ends_with_usage_and_near_matches(subject: str, hint: str) -> None:
    with pytest.raises(CommandError) as caught:
        run(subject)
    assert caught.value.exit_code == ExitCode.USAGE
    assert hint in str(caught.value)


@pytest.mark.parametrize("sample", VALID, ids=lambda sample: f"{sample['kind']}-{sample['metadata']['name']}")
def test_an_object_in_full_means_the_same_and_leaves_nothing_open(sample: dict[str, Any]) -> None:
    model = BY_NAME[sample["kind"]].model
    before = model.strict(sample)
    (document,) = read_documents("\n".join(explain_object(Document(sample, 1))), "explained")
    after = model.strict(document.content)
    assert effective_values(effective_spec(after)) == effective_values(effective_spec(before))


def effective_values(value: Any) -> Any:
    """The values alone, without where they come from."""
    match value.content:
        case dict():
            return {name: effective_values(item) for name, item in value.content.items()}
        case list():
            return [effective_values(item) for item in value.content]
        case _:
            return value.meaning or value.content


def test_values_are_marked_by_where_they_come_from() -> None:
    lines = explain_object(Document(node_policy(priority=7, rules=[device_rule("r", mode="Passthrough")]), 1))
    assert "  priority: 7" in lines
    assert "  state: Active  # effective" in lines
    assert "    passthrough:  # effective" in lines
    assert "      companions: Refuse  # effective" in lines
    assert "    # absent, so all: limit" in lines
    assert "    mode: Passthrough" in lines
    assert not any("hardVNPU" in line for line in lines)


def test_strings_that_yaml_would_take_for_something_else_are_quoted() -> None:
    match = {"vendors": ["1eff"], "devices": ["1250"], "serials": ["26e9", "y", "a:", "#c"], "numaNodes": [0]}
    lines = explain_object(Document(node_policy(rules=[device_rule(match=match)]), 1))
    assert '      devices: ["1250"]' in lines
    assert '      serials: ["26e9", "y", "a:", "#c"]' in lines


@pytest.mark.parametrize("sample", REFUSED_BY_SCHEMA, ids=lambda sample: sample.name)
def test_a_faulty_object_is_told_with_file_line_and_field(
    sample: InvalidSample, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-f", str(sample.path)) == ExitCode.FINDINGS
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{sample.path}:5: {sample.field}: ")
    assert len(err.splitlines()) == 1


def test_good_objects_of_a_file_are_shown_beside_the_faults_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.yaml"
    good = (FOLDER / "npunodepolicy-minimal.yaml").read_text()
    bad = "apiVersion: npufleet.io/v1alpha1\nkind: NPUNodePolicies\n"
    file.write_text(f"{good}---\n{bad}---\napiVersion: v1\nkind: Namespace\n---\n- no object\n")
    assert run("-f", str(file)) == ExitCode.FINDINGS
    out, err = capsys.readouterr()
    assert "name: sample-minimal" in out
    assert "# Namespace of v1 is none of npufleet's kinds" in out
    assert "no kind NPUNodePolicies of npufleet.io/v1alpha1; did you mean NPUNodePolicy?" in err
    assert "no Kubernetes object" in err


def test_a_file_that_cannot_be_read_is_wrong_usage_and_one_that_is_no_yaml_a_finding(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read") as caught:
        run("-f", str(tmp_path / "none.yaml"))
    assert caught.value.exit_code == ExitCode.USAGE
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(CommandError, match=r"bad\.yaml:1:5") as caught:
        run("-f", str(tmp_path / "bad.yaml"))
    assert caught.value.exit_code == ExitCode.FINDINGS
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CommandError, match="cannot be read"):
        run("-f", str(tmp_path / "bytes.yaml"))


def test_conditions_are_explained_with_their_reasons() -> None:
    told = "\n".join(explain_subject("npunp.status.conditions"))
    assert "condition Conflicted" in told
    assert "DaemonMissing (False)" in told
    assert "InventoryRead (True)" in "\n".join(explain_subject("npuns.status.inventory.conditions"))
    assert "CompanionsRefused (Blocked)" in "\n".join(explain_subject("npuns.status.bindings.devices.reason"))
