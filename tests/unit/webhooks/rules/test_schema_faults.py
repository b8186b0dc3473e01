"""A fault of the schema hides no other fault, and costs no more than the API allows of a list."""

import time
from typing import Any

import pytest

from crds.catalogue import load_catalogue
from crds.models.kinds import BY_NAME
from tests.builders.objects import device_rule, node_policy, profile_map
from webhooks.rules import KnownView, Subject
from webhooks.rules.judge import judge

VIEW = KnownView(load_catalogue())


def told(content: dict[str, Any]) -> list[str]:
    return [found.line for found in judge(Subject.of(BY_NAME[content["kind"]], content), VIEW)]


def test_a_wrong_criterion_hides_no_fault_of_the_rest_of_the_rule() -> None:
    match = {"products": ["Ascend-310P3"], "numaNodes": [-1, 3]}
    rule = device_rule(match=match, mode="HardVNPU") | {"hardVNPU": {"templates": ["vir04", "vir4"]}}
    places = [line.partition(": ")[0] for line in told(node_policy(rules=[rule]))]
    assert places == ["spec.devices[0].match.numaNodes[0]", "spec.devices[0].hardVNPU.templates[1]"]


def test_a_list_of_criteria_with_nothing_right_in_it_is_not_taken_for_none() -> None:
    first = device_rule("first", match={"products": ["RBLN-CA25"], "numaNodes": [-1]})
    (line,) = told(node_policy(rules=[first, device_rule("second")]))
    assert line.startswith("spec.devices[0].match.numaNodes[0]: ")


def test_lists_far_too_long_are_judged_in_no_time() -> None:
    before = time.process_time()
    assert any("Too many" in line for line in told(node_policy(rules=[device_rule(f"r{i}") for i in range(2000)])))
    products = [f"RBLN-CA{number}" for number in range(1000, 9000)]
    assert any("Too many" in line for line in told(node_policy(rules=[device_rule(products=products)])))
    assert time.process_time() - before < 8


@pytest.mark.parametrize(
    ("written", "meant"), [("GRID T4-8Q", "T4-8Q"), ("NVIDIA L40S-8Q", "L40S-8Q"), ("T4-8Q ", "T4-8Q")]
)
def test_what_stands_before_the_name_of_a_profile_is_left_out(written: str, meant: str) -> None:
    content = profile_map(layout={written: 1})
    assert any(f'did you mean "{meant}"?' in line for line in told(content))


@pytest.mark.parametrize(("written", "meant"), [("NVIDIA L40S", "L40S"), ("Ascend 910B4", "Ascend-910B4")])
def test_what_stands_before_the_name_of_a_product_is_left_out(written: str, meant: str) -> None:
    assert any(f'did you mean "{meant}"?' in line for line in told(node_policy(products=[written])))


def line_of(content: dict[str, Any], rule: str) -> str:
    return next(line for line in told(content) if line.endswith(f"[{rule}]"))


def test_a_field_in_the_wrong_place_is_told_where_it_belongs() -> None:
    policy = node_policy(rules=[device_rule() | {"driverName": "vfio-pci"}])
    assert "it belongs to spec [" in line_of(policy, "NPF-ALL-001")


@pytest.mark.parametrize(("written", "meant"), [("8gi", "8Gi"), ("512 mi", "512Mi"), ("8 gb", "8G")])
def test_letters_of_a_quantity_are_put_right(written: str, meant: str) -> None:
    soft = {"softVNPU": {"library": {"name": "vcann-rt", "version": "1.2.0"}, "memoryReserve": written}}
    policy = node_policy(rules=[device_rule(products=["Ascend-310P3"], mode="SoftVNPU") | soft])
    assert any(f'did you mean "{meant}"?' in line for line in told(policy))


def test_a_number_of_any_length_is_a_fault_and_no_failure() -> None:
    assert "more than 64 bits" in line_of(node_policy(priority=10**5000), "NPF-ALL-002")


def test_a_name_of_any_length_is_repeated_in_part_only() -> None:
    assert all(len(line) < 3000 for line in told(node_policy(products=["x" * 3_000_000])))


def test_the_form_of_a_name_is_told_to_the_end() -> None:
    assert "lower-case letters, digits, - and . [" in line_of(node_policy("Name!"), "NPF-ALL-005")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ATOM-Max", "RBLN-CA25"),
        ("310P3", "Ascend-310P3"),
        ("H100", "H100_PCIE, H100_SXM5_80GB or H100L_94GB"),
        ("nothing-like-it", ""),
    ],
)
def test_products_are_found_by_title_and_by_parts_of_their_names(written: str, meant: str) -> None:
    hint = f"did you mean {meant}?" if meant else "npufleet explain products lists those that are known"
    assert hint in line_of(node_policy(products=[written]), "NPF-NP-101")


def test_the_criterion_at_odds_is_the_one_that_is_named() -> None:
    def odd(match: dict[str, Any]) -> str:
        rule = device_rule(match=match, mode="Container")
        return line_of(node_policy(rules=[rule]), "NPF-NP-110")

    virtual = odd({"products": ["A40"], "vendors": ["10de"], "function": "Virtual"})
    assert virtual.startswith("spec.devices[0].match.function: the catalogue knows no virtual function of A40")
    assert odd({"products": ["RBLN-CA25"], "vendors": ["10de"]}).startswith(
        "spec.devices[0].match.products[0]: RBLN-CA25 is never a device with these vendors"
    )
