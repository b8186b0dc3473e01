"""The samples: valid ones survive the models unchanged, each invalid one has just the fault that it is there for."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from crds.catalogue import load_catalogue
from crds.generator.schema import structural_schema
from crds.models.base import field_path
from crds.models.kinds import BY_NAME, KINDS
from crds.yaml_documents import read_documents
from tests.builders.samples import FOLDER, INVALID, REFUSED_BY_SCHEMA, VALID, WARNED, InvalidSample
from tests.builders.schema_judge import Judge
from webhooks.rules.between_fields import told_id


@pytest.mark.parametrize("sample", VALID, ids=lambda sample: f"{sample['kind']}-{sample['metadata']['name']}")
def test_a_valid_sample_comes_back_as_it_was_written(sample: dict[str, Any]) -> None:
    model = BY_NAME[sample["kind"]].model
    assert model.strict(sample).to_object() == sample
    assert model.model_validate(sample).to_object() == sample


@pytest.mark.parametrize("sample", REFUSED_BY_SCHEMA, ids=lambda sample: sample.name)
def test_an_invalid_sample_is_refused_at_its_field_and_nowhere_else(sample: InvalidSample) -> None:
    with pytest.raises(ValidationError) as caught:
        BY_NAME[sample.object["kind"]].model.strict(sample.object)
    assert [field_path(fault["loc"]) for fault in caught.value.errors()] == [sample.field]


def test_every_kind_has_a_minimal_and_a_full_sample() -> None:
    for kind in KINDS:
        for size in ("minimal", "full"):
            assert (FOLDER / f"{kind.singular}-{size}.yaml").is_file()


def test_full_samples_show_every_field_of_spec() -> None:
    for kind in KINDS:
        if kind.name == "NPUNodeState":  # its blocks are those of a policy
            continue
        schema = structural_schema(kind.model)["properties"]["spec"]
        sample = read_documents((FOLDER / f"{kind.singular}-full.yaml").read_text(), "full")[0].content["spec"]
        not_shown = missing(schema, [sample], "spec")
        # The criteria of a match are shown once, in the policy.
        assert [path for path in not_shown if not path.startswith("spec.gpus.match.")] == []


def missing(schema: dict[str, Any], values: list[Any], path: str) -> list[str]:
    """Fields below that none of the values has."""
    if "items" in schema:
        return missing(schema["items"], [item for value in values for item in value], path)
    found = []
    for name, child in schema.get("properties", {}).items():
        given = [value[name] for value in values if name in value]
        found += missing(child, given, f"{path}.{name}") if given else [f"{path}.{name}"]
    return found


def test_there_is_an_invalid_sample_for_every_cel_rule() -> None:
    broken = {message for sample in INVALID for message in cel_messages(sample)}
    for kind in KINDS:
        text = yaml.safe_dump(structural_schema(kind.model)["properties"]["spec"], width=10**6)
        for message in re.findall(r"message: (.*)", text):
            assert told_id(message.strip("'\""))[1] in broken


def cel_messages(sample: InvalidSample) -> list[str]:
    judge = Judge(structural_schema(BY_NAME[sample.object["kind"]].model)["properties"]["spec"])
    return [fault.partition(": ")[2] for fault in judge.faults(sample.object["spec"])]


def test_the_kustomization_has_every_valid_sample_but_node_states() -> None:
    listed = set(yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"])
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert listed == {name for name in files if not name.startswith("npunodestate-")}


def test_samples_name_products_and_profiles_that_the_catalogue_has() -> None:
    catalogue = load_catalogue()
    text = "\n".join(path.read_text() for path in FOLDER.glob("*.yaml"))
    for group in re.findall(r"products: \[(.*?)\]", text):
        for name in group.split(", "):
            assert name in catalogue.products
    profiles = {profile.name for product in catalogue.products.values() for profile in product.profiles}
    for name in re.findall(r"profile: ([\w-]+)", text):
        assert name in profiles


def test_no_file_of_samples_is_left_out_here() -> None:
    assert len(INVALID) == len(list(Path(FOLDER / "invalid").iterdir()))
    assert len(WARNED) == len(list(Path(FOLDER / "warned").iterdir()))
    assert len(VALID) >= 2 * len(KINDS)
