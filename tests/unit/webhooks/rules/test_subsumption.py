"""A match that is said to cover another does so for every device, as the planner matches them."""

from typing import Any

from hypothesis import HealthCheck, given, settings

from controllers.node_policy.plan.match import matches
from controllers.node_policy.plan.view import DeviceView
from crds.catalogue import load_catalogue
from crds.models.device_match import DeviceMatch
from tests.builders.devices_of_matches import draw_match, draw_wider, drawn, every_device, model
from tests.builders.examples import Digits, at_least
from webhooks.rules.hardware import meant
from webhooks.rules.subsumption import apart, covers, taken_by

CATALOGUE = load_catalogue()
DEVICES = every_device(CATALOGUE)
FLOOR = 2000


def meaning(match: DeviceMatch) -> list[DeviceView]:
    return [device for device in DEVICES if matches(match, device)]


def covered(general: dict[str, Any], special: dict[str, Any]) -> bool:
    return covers(model(general), model(special), CATALOGUE)


def test_what_is_said_of_two_matches_holds_for_every_device() -> None:
    said = {"covers": 0, "taken": 0, "apart": 0}

    @settings(max_examples=FLOOR + 200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(drawn())
    def hold(digits: Digits) -> None:
        examples.one()
        frequent = digits.pick((3, 5, 8))
        drawn_special = draw_match(digits, frequent=frequent)
        special = model(drawn_special)
        generals = [
            model(draw_wider(digits, drawn_special, share) if digits.pick((True, False)) else draw_match(digits))
            for share in range(digits.pick((1, 2, 3)))
        ]
        meant_devices = meaning(special)
        if covers(generals[0], special, CATALOGUE):
            said["covers"] += 1
            assert all(matches(generals[0], device) for device in meant_devices)
        takers = taken_by(generals, special, CATALOGUE)
        if takers:
            said["taken"] += len(takers) > 1
            assert all(any(matches(generals[index], device) for index in takers) for device in meant_devices)
        if apart(generals[0], special, CATALOGUE):
            said["apart"] += 1
            assert not any(matches(generals[0], device) for device in meant_devices)

    with at_least(FLOOR, "matches cover, take and exclude what they are said to") as examples:
        hold()
    print(said)
    assert said["covers"] > 200
    assert said["taken"] > 5
    assert said["apart"] > 200


def test_products_that_are_said_to_be_all_that_is_meant_are_all() -> None:
    said = 0

    @settings(max_examples=FLOOR + 200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(drawn())
    def hold(digits: Digits) -> None:
        nonlocal said
        examples.one()
        match = model(draw_match(digits, frequent=digits.pick((2, 3))))
        found = meant(match, CATALOGUE)
        names = {product.name for product in found.products}
        there = {device.product for device in meaning(match)}
        assert there - {None} <= names
        if found.only:
            said += 1
            assert there <= names

    with at_least(FLOOR, "products are all that is meant") as examples:
        hold()
    assert said > 200


def test_a_vendor_covers_its_products() -> None:
    assert covered({"vendors": ["1eff"]}, {"products": ["RBLN-CA25", "RBLN-CR03"]})
    assert not covered({"vendors": ["1eff"]}, {"products": ["RBLN-CA25", "L40S"]})
    assert not covered({"vendors": ["1eff"]}, {"products": ["SOMETHING-NEW"]})


def test_ids_cover_the_product_that_they_are_and_the_other_way_round() -> None:
    ids = {"vendors": ["1eff"], "devices": ["1250"]}
    assert covered(ids, {"products": ["RBLN-CA25"]})
    assert covered({"products": ["RBLN-CA25"]}, ids)
    assert not covered(ids, {"products": ["RBLN-CA25"], "function": "Virtual"})


def test_an_id_that_is_several_products_by_subsystem_covers_none_of_them_alone() -> None:
    ids = {"vendors": ["19e5"], "devices": ["d500"]}
    assert not covered({"products": ["Ascend-310P3"]}, ids)
    assert covered({"products": ["Ascend-310P3"]}, ids | {"subsystems": ["0200:0100"]})


def test_a_class_of_4_digits_covers_those_of_6() -> None:
    assert covered({"classes": ["1200"]}, {"classes": ["120000"]})
    assert not covered({"classes": ["120000"]}, {"classes": ["1200"]})


def test_two_matches_take_together_what_neither_takes_alone() -> None:
    parts = [model({"products": ["L40S"]}), model({"products": ["A40"]})]
    assert taken_by(parts, model({"products": ["A40", "L40S"]}), CATALOGUE) == (0, 1)
    assert taken_by(parts, model({"products": ["A40", "L40S", "A10"]}), CATALOGUE) == ()
    functions = [model({"vendors": ["10de"]}), model({"vendors": ["10de"], "function": "Virtual"})]
    assert taken_by(functions, model({"vendors": ["10de"], "function": "Any"}), CATALOGUE) == (0, 1)
