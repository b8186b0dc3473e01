"""Models, schemas and the linter take the same objects: three readings of one API, of which two are not enough."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import ValidationError

from crds.generator.schema import structural_schema
from crds.models.base import API_VERSION
from crds.models.kinds import BY_NAME, KINDS
from tests.builders.examples import at_least, times
from tests.builders.linting import found_in, options
from tests.builders.made_objects import Maker, Pick, choices
from tests.builders.mutations import mutated, seeds
from tests.builders.schema_judge import Judge
from webhooks.rules import Layer
from webhooks.rules.structural import nulls

SCHEMAS = {kind.name: structural_schema(kind.model) for kind in KINDS}
JUDGES = {name: Judge(schema["properties"]["spec"]) for name, schema in SCHEMAS.items()}
SEEDS = {kind.name: [seed for seed in seeds() if seed["kind"] == kind.name] for kind in KINDS}
# More than 20,000 together.
FLOORS = {"NPUNodePolicy": 8000, "VGPUProfileMap": 4500, "VNPUQuota": 4500, "NPUNodeState": 3500}
ASKED = options(is_whole=False)
LAYERS = (Layer.FIELDS, Layer.SCHEMA, Layer.CEL)


def made(pick: Pick, kind: str) -> dict[str, Any]:
    """An object by the schema, or a real one with accidents; without a status, which files do not answer for."""
    metadata = {"name": "x"} | ({"namespace": "team"} if BY_NAME[kind].namespaced else {})
    if pick((False, True)):
        obj = mutated(pick, pick(SEEDS[kind]))
        spec = obj.get("spec")
    else:
        spec = Maker(pick, sloppy=pick((False, True))).value(SCHEMAS[kind]["properties"]["spec"])
        if pick((False, False, True)):
            spec = mutated(pick, {"spec": spec}).get("spec")
    found = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata}
    return found if spec is None else found | {"spec": spec}


def refused_by_the_linter(obj: dict[str, Any]) -> list[str]:
    """A null counts: the API server drops it, the linter warns of it, and a model of a file refuses it."""
    return [
        one.violation.line
        for one in found_in(json.dumps(obj, ensure_ascii=False), asked=ASKED)
        if one.layer in LAYERS and (one.is_error or one.rule == "NPF-ALL-010")
    ]


@pytest.mark.parametrize("kind", FLOORS)
def test_what_is_accepted(kind: str) -> None:
    verdicts: Counter[bool] = Counter()

    @settings(max_examples=times(FLOORS[kind]), deadline=None, suppress_health_check=list(HealthCheck))
    @given(choices())
    def agree(pick: Pick) -> None:
        examples.one()
        obj = made(pick, kind)
        if "spec" in obj:
            by_schema = [*JUDGES[kind].faults(obj["spec"]), *(flaw.message for flaw in nulls(obj["spec"]))]
        else:
            by_schema = ["spec: Required value"]
        try:
            BY_NAME[kind].model.strict(obj)
            by_model: list[str] = []
        except ValidationError as error:
            by_model = [f"{fault['loc']}: {fault['msg']}" for fault in error.errors()]
        by_linter = refused_by_the_linter(obj)
        verdicts[not by_schema] += 1
        assert bool(by_schema) == bool(by_model) == bool(by_linter), (
            f"schema: {by_schema}\nmodel: {by_model}\nlinter: {by_linter}\n{json.dumps(obj)}"
        )

    with at_least(FLOORS[kind], f"models, schemas and linter agree on a {kind}") as examples:
        agree()
    print(f"of these {verdicts[True]} accepted, {verdicts[False]} refused")
    assert min(verdicts[True], verdicts[False]) > FLOORS[kind] // 10
