"""The models and the generated schemas take exactly the same objects."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from crds.generator.schema import structural_schema, walk
from crds.models.base import API_VERSION
from crds.models.kinds import BY_NAME, KINDS
from tests.builders.examples import at_least
from tests.builders.made_objects import Maker, choices, fitting
from tests.builders.schema_judge import Judge
from tests.builders.spoiled import NEARLY, spoil_by

FLOOR = 2000
SCHEMAS = {kind.name: structural_schema(kind.model) for kind in KINDS}
JUDGES = {name: Judge(schema) for name, schema in SCHEMAS.items()}


def test_every_pattern_has_strings_that_fit_and_strings_that_nearly_do() -> None:
    patterns = {
        (node["pattern"], int(node["maxLength"]))
        for schema in SCHEMAS.values()
        for _, node in walk(schema)
        if "pattern" in node
    }
    for pattern, longest in patterns:
        bare = Judge({"type": "string", "pattern": pattern, "maxLength": longest})
        strings = [text for text in fitting(pattern) if isinstance(text, str) and len(text) <= longest]
        assert strings
        assert [text for text in strings if bare.faults(text)] == [], pattern
        assert any(bare.faults(text) for text in NEARLY), pattern


@st.composite
def objects(draw: st.DrawFn) -> dict[str, Any]:
    # The policy has most of the rules.
    pick = draw(choices())
    name = pick([*sorted(SCHEMAS), "NPUNodePolicy"])
    maker = Maker(pick, sloppy=pick((False, True)))
    properties = SCHEMAS[name]["properties"]
    found: dict[str, Any] = {"spec": maker.value(properties["spec"])}
    if pick((False, True)):
        found["status"] = maker.value(properties["status"])
    if pick((False, False, True)):
        spoil_by(pick, found)
    return {"apiVersion": API_VERSION, "kind": name, "metadata": {"name": "x"}} | found


def test_the_models_take_what_the_schemas_take_and_nothing_else() -> None:
    verdicts = {True: 0, False: 0}

    @settings(max_examples=2400, deadline=None, suppress_health_check=list(HealthCheck))
    @given(objects())
    def agree(obj: dict[str, Any]) -> None:
        examples.one()
        schema_faults = JUDGES[obj["kind"]].faults({key: obj[key] for key in obj if key in {"spec", "status"}})
        try:
            BY_NAME[obj["kind"]].model.strict(obj)
            model_faults: list[str] = []
        except ValidationError as error:
            model_faults = [f"{fault['loc']}: {fault['msg']}" for fault in error.errors()]
        verdicts[not schema_faults] += 1
        assert bool(schema_faults) == bool(model_faults), f"schema: {schema_faults}\nmodel: {model_faults}\n{obj}"

    with at_least(FLOOR, "schema and model agree") as examples:
        agree()
    print(f"of these {verdicts[True]} valid, {verdicts[False]} invalid")
    assert min(verdicts.values()) >= FLOOR // 5


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_an_object_that_is_none_is_refused_in_one_message_per_fault(name: str) -> None:
    nonsenses: list[Any] = [[], "x", 1, {}, {"spec": []}]
    for nonsense in nonsenses:
        with pytest.raises(ValidationError) as caught:
            BY_NAME[name].model.strict(nonsense)
        assert caught.value.errors()
