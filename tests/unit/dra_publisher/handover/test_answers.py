"""Whether what a daemon said of a device is an answer to its present order."""

from typing import Any

from crds.models.node_state import NodeStateStatus
from dra_publisher.handover.answers import Answers
from tests.builders.binder import NPU, TWIN, order, spec

BOOT, BEFORE = "0b5c8f6e-0f57-4b1e-9d5e-7a0c4f1b2d3e", "11111111-0f57-4b1e-9d5e-7a0c4f1b2d3e"


def status(generation: int, *states: str, boot_id: str = BOOT) -> NodeStateStatus:
    devices = [
        {"address": address, "state": state, "reason": "Bound"}
        for address, state in zip((NPU, TWIN), states, strict=False)
    ]
    bindings = {"observedGeneration": generation, "bootID": boot_id, "devices": devices}
    return NodeStateStatus.model_validate({"bindings": bindings})


def said(answers: Answers, entries: Any, now: NodeStateStatus) -> dict[str, str]:
    return {address: str(report.state) for address, report in answers.said(entries, now, BOOT).items()}


def test_the_answer_to_an_order_that_did_not_change_stays_good_and_that_to_a_changed_one_does_not() -> None:
    answers = Answers()
    first = spec(order(), order(TWIN)).devices
    answers.take_up(first, 4)
    assert said(answers, first, status(4, "Ready", "Ready")) == {NPU: "Ready", TWIN: "Ready"}
    then = spec(order(), order(TWIN, mode="Container")).devices
    answers.take_up(then, 5)
    assert said(answers, then, status(4, "Ready", "Ready")) == {NPU: "Ready"}
    assert said(answers, then, status(5, "Ready", "Pending")) == {NPU: "Ready", TWIN: "Pending"}


def test_an_order_that_comes_back_is_a_new_one() -> None:
    answers = Answers()
    vm, container = spec(order()).devices, spec(order(mode="Container")).devices
    for generation, entries in ((1, vm), (2, container), (3, vm)):
        answers.take_up(entries, generation)
    assert said(answers, vm, status(1, "Ready")) == {}
    assert said(answers, vm, status(3, "Ready")) == {NPU: "Ready"}


def test_after_a_start_the_present_generation_is_asked_for() -> None:
    answers = Answers()
    entries = spec(order()).devices
    answers.take_up(entries, 7)
    assert said(answers, entries, status(6, "Ready")) == {}


def test_another_boot_says_nothing() -> None:
    answers = Answers()
    entries = spec(order()).devices
    answers.take_up(entries, 1)
    assert said(answers, entries, status(1, "Ready", boot_id=BEFORE)) == {}


def test_what_is_given_back_is_the_binders_alone() -> None:
    answers = Answers()
    entries = spec(order(mode="VGPU", intent="Release")).devices
    answers.take_up(entries, 1)
    assert said(answers, entries, status(1, "Released")) == {NPU: "Released"}
