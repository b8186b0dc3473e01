"""What is longer than the schema allows is refused before anything of it is judged: the API server sends none of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders.reviews import policy, quota, review_document, reviewed


def too_many_products() -> Any:
    return policy(products=["RBLN-CA25"] * 200_000)


def too_many_rules() -> Any:
    found = policy()
    found["spec"]["devices"] *= 20_000
    return found


def too_many_values() -> Any:
    asked = {"key": "a", "operator": "In", "values": [f"v{number}" for number in range(100_000)]}
    return policy(nodeSelector={"matchExpressions": [asked]})


def too_many_profiles() -> Any:
    return quota(profiles={f"L40S-{number}Q": 1 for number in range(60_000)})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (too_many_products(), "spec.devices[0].match.products has 200000 items, and the schema allows 32"),
        (too_many_rules(), "spec.devices has 20000 items, and the schema allows 32"),
        (too_many_values(), "spec.nodeSelector.matchExpressions[0].values has 100000 items, and the schema allows 64"),
        (too_many_profiles(), "spec.limits.profiles has 60000 items, and the schema allows 64"),
    ],
    ids=["products", "rules", "values", "profiles"],
)
def test_list_beyond_its_bound_is_refused_and_nothing_of_it_is_judged(content: Any, told: str) -> None:
    asked = 0

    def still_time() -> bool:
        nonlocal asked
        asked += 1
        return True

    outcome = reviewed(review_document(kind=content["kind"], content=content), still_time=still_time)
    assert (outcome.verdict, asked) == ("refused", 0)
    status = outcome.answer["response"]["status"]
    assert status["code"] == 422
    assert told in status["message"]


def test_list_that_was_too_long_before_is_judged_as_it_always_was() -> None:
    """A bound that became tighter locks nobody out: the API server bears a list that has not changed, too."""
    old = policy(products=["RBLN-CA25"] * 100)
    new = policy(products=["RBLN-CA25"] * 100, priority=7)
    assert reviewed(review_document(operation="UPDATE", content=new, old=old)).verdict == "allowed"
    longer = policy(products=["RBLN-CA25"] * 101)
    assert reviewed(review_document(operation="UPDATE", content=longer, old=old)).verdict == "refused"


@pytest.mark.parametrize("spec", [None, [], "text", {"devices": {}}, {"devices": [None, 7, {"match": []}]}])
def test_spec_of_any_shape_has_an_answer(spec: Any) -> None:
    content = policy() | {"spec": spec}
    assert reviewed(review_document(content=content)).answer["response"]["uid"]


def test_annotations_beyond_what_an_api_server_stores_cost_no_more_than_those_that_it_does() -> None:
    content = policy()
    secret = "-----BEGIN PRIVATE KEY-----"
    content["metadata"]["annotations"] = {f"example.com/{number}": "x" * 65536 for number in range(40)} | {"z": secret}
    assert reviewed(review_document(content=content)).verdict == "allowed"
    content["metadata"]["annotations"] = {f"example.com/{number}": "x" * 65536 for number in range(3)} | {"z": secret}
    assert reviewed(review_document(content=content)).broken == ("NPF-ALL-111",)
