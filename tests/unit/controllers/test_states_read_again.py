"""A state that is known already is read from its former record: faster, and never anything else."""

from typing import Any

import pytest

from controllers.node_policy.plan import read_state
from tests.builders.objects import desired_device, device_report, inventory_device, node_state, report

A, B = "0000:20:00.0", "0000:21:00.0"
ORDERS = {"revision": "aa", "devices": [desired_device(A), desired_device(B)]}


def state(generation: int = 3, **given: Any) -> dict[str, Any]:
    found = node_state(meta={"generation": generation}, **{**ORDERS, **given})
    del found["spec"]["rollouts"]
    return found


FORMER = state(inventory=report([inventory_device(A)]))


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(state(), id="a report went away"),
        pytest.param(state(bindings=report([device_report(A)], generation=3)), id="another report"),
        pytest.param(state(4, revision="bb", devices=[desired_device(A)]), id="other orders"),
        pytest.param(state(4, devices=[desired_device(A)]), id="orders edited by hand, the revision left"),
        pytest.param(state(3, revision="bb", devices=[desired_device(A)]), id="a history set back, counted anew"),
        pytest.param(state(3, node_uid="another"), id="a history set back, for another Node"),
        pytest.param(state(4, devices=[{"address": 7}]), id="orders that cannot be understood"),
        pytest.param(state(0, devices=[]), id="an object that nobody counts"),
    ],
)
def test_state_is_read_as_if_it_had_never_been_seen(now: dict[str, Any]) -> None:
    assert read_state(now, read_state(FORMER)) == read_state(now)


def test_orders_that_stand_are_not_read_again() -> None:
    former = read_state(FORMER)
    again = read_state(state(bindings=report([device_report(A)], generation=3)), former)
    assert again.orders is former.orders
    assert again.reports != former.reports


def test_orders_that_could_not_be_understood_are_read_again_when_they_are_sound() -> None:
    broken = state(3, devices=[{"address": 7}])
    assert read_state(broken).error
    sound = state(3)
    assert read_state(sound, read_state(broken)) == read_state(sound)
