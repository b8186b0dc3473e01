"""A selector that is said to be within another selects no Node that the other does not; one at odds selects none."""

from itertools import product
from typing import Any

from hypothesis import HealthCheck, given, settings

from crds.models.selectors import LabelSelector
from tests.builders.devices_of_matches import drawn
from tests.builders.examples import Digits, at_least
from webhooks.rules.selector_logic import asked, within

VALUES = (None, "a", "b", "c")
NODES = [
    {key: value for key, value in zip(("x", "y"), values, strict=True) if value is not None}
    for values in product(VALUES, repeat=2)
]
FLOOR = 2000


def draw_selector(digits: Digits) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if digits.pick(range(3)) == 0:
        found["matchLabels"] = {digits.pick(("x", "y")): digits.pick(("a", "b"))}
    requirements: list[dict[str, Any]] = []
    for _ in range(digits.pick((0, 1, 1, 2, 3))):
        operator = digits.pick(("In", "In", "NotIn", "Exists", "DoesNotExist"))
        values = sorted({digits.pick(("a", "b", "c")) for _ in range(digits.pick((1, 2)))})
        one: dict[str, Any] = {"key": digits.pick(("x", "y")), "operator": operator}
        requirements.append(one | ({"values": values} if operator in {"In", "NotIn"} else {}))
    return found | ({"matchExpressions": requirements} if requirements else {})


def test_what_is_said_of_selectors_holds_for_every_node() -> None:
    said = {"within": 0, "at odds": 0}

    @settings(max_examples=FLOOR + 500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(drawn())
    def hold(digits: Digits) -> None:
        examples.one()
        narrow = LabelSelector.model_validate(draw_selector(digits))
        wide = LabelSelector.model_validate(draw_selector(digits))
        selected = [node for node in NODES if narrow.matches(node)]
        if within(narrow, wide):
            said["within"] += 1
            assert all(wide.matches(node) for node in selected)
        if any(one.impossible for one in asked(narrow).values()):
            said["at odds"] += 1
            assert selected == []

    with at_least(FLOOR, "selectors are within and at odds as they are said to be") as examples:
        hold()
    print(said)
    assert min(said.values()) > 100


def test_every_selector_is_within_one_that_selects_everything_and_within_itself() -> None:
    everything = LabelSelector()
    one = LabelSelector.model_validate({"matchLabels": {"x": "a"}})
    assert within(one, everything)
    assert within(one, one)
    assert not within(everything, one)
