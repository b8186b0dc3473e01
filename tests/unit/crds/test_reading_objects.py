"""Objects are read tolerantly from the API and strictly from files; either way they are written back as they were."""

from typing import Any

import pytest
from pydantic import ValidationError

from crds.models import NPUNodePolicy, NPUNodeState, VNPUQuota
from crds.models.base import api_name, describe_faults, field_path
from crds.models.modes import HardVNPU, Mode, Passthrough
from crds.models.rollout import Rollout
from tests.builders.objects import (
    desired_device,
    device_report,
    device_rule,
    inventory_device,
    node_policy,
    node_state,
    profile_map,
    quota,
    report,
)


@pytest.mark.parametrize(
    ("attribute", "name"),
    [
        ("mode", "mode"),
        ("on_release", "onRelease"),
        ("node_uid", "nodeUID"),
        ("boot_id", "bootID"),
        ("soft_vnpu", "softVNPU"),
        ("drain_timeout_seconds", "drainTimeoutSeconds"),
    ],
)
def test_names_in_yaml_follow_from_the_attributes(attribute: str, name: str) -> None:
    assert api_name(attribute) == name


def faults(obj: Any) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        NPUNodePolicy.strict(obj)
    return {field_path(fault["loc"]): fault["msg"] for fault in caught.value.errors()}


def test_a_field_that_this_version_does_not_know_is_read_over_but_refused_in_files() -> None:
    obj = node_policy(future="x")
    assert NPUNodePolicy.model_validate(obj).spec.priority == 100
    assert faults(obj) == {"spec.future": "Extra inputs are not permitted"}


def test_python_names_are_no_field_names_in_files() -> None:
    assert set(faults(node_policy() | {"spec": {"node_selector": {}, "devices": [device_rule()]}})) == {
        "spec.node_selector",
        "spec.nodeSelector",
    }


def test_faults_are_described_in_one_line_below_their_field_the_first_of_many() -> None:
    with pytest.raises(ValidationError) as caught:
        NPUNodePolicy.model_validate(node_policy(rules=[device_rule(mode=mode) for mode in "ABC"]))
    text = describe_faults(caught.value, "item", most=2)
    first, second, rest = text.split("; ")
    assert first.startswith("item.spec.devices[0].mode: Input should be 'Passthrough', ")
    assert second.startswith("item.spec.devices[1].mode: ")
    assert rest == "and 1 more"
    with pytest.raises(ValidationError) as caught:
        NPUNodePolicy.model_validate(7)
    assert describe_faults(caught.value, "item").startswith("item: Input should be ")


def test_all_faults_of_an_object_are_told_at_once() -> None:
    obj = node_policy(priority="high", rollout={"maxUnavailable": "0%"}, rules=[device_rule(limit=0), {"name": "x"}])
    assert set(faults(obj)) == {
        "spec.priority",
        "spec.rollout.maxUnavailable",
        "spec.devices[0].limit",
        "spec.devices[1].match",
        "spec.devices[1].mode",
    }


def test_null_is_refused_in_files_because_the_api_server_drops_it() -> None:
    obj = node_policy(priority=None, rules=[device_rule(limit=None)])
    assert set(faults(obj)) == {"spec.priority", "spec.devices[0].limit"}


@pytest.mark.parametrize(
    ("field", "value"), [("priority", "1"), ("priority", 1.0), ("priority", True), ("onRelease", 1)]
)
def test_values_of_another_type_are_not_converted(field: str, value: object) -> None:
    obj = node_policy()
    obj["spec"][field] = value
    assert set(faults(obj)) == {f"spec.{field}"}


def test_kind_and_version_are_needed_and_checked_in_files() -> None:
    obj = node_policy()
    del obj["apiVersion"], obj["kind"]
    assert set(faults(obj)) == {"apiVersion", "kind"}
    assert set(faults(node_policy() | {"apiVersion": "npufleet.io/v2", "kind": "VNPUQuota"})) == {"apiVersion", "kind"}


def test_an_item_of_a_list_is_written_back_with_kind_and_version() -> None:
    obj = node_policy()
    item = {key: obj[key] for key in ("metadata", "spec")}
    assert NPUNodePolicy.model_validate(item).to_object() == obj


def test_metadata_that_we_do_not_read_is_legal_in_files_and_misspelt_metadata_is_not() -> None:
    obj = node_policy()
    obj["metadata"] |= {"finalizers": ["a/b"], "managedFields": [], "ownerReferences": []}
    NPUNodePolicy.strict(obj)
    obj["metadata"]["label"] = {}
    assert set(faults(obj)) == {"metadata.label"}


def test_an_object_that_is_no_json_is_refused_not_crashed_on() -> None:
    assert "cannot be written as JSON" in faults(node_policy(priority={1, 2}))[""]


@pytest.mark.parametrize(
    "obj",
    [
        node_policy(mode="Container", on_release="Leave"),
        node_policy(rules=[device_rule(mode="VGPU", vgpu={"profileMapRef": {"name": "halves"}})]),
        node_state(
            devices=[desired_device()],
            inventory=report([inventory_device(iommu_group=42, used_by=[], vetoes=[])]),
            bindings=report([device_report(former_driver="")]),
        ),
    ],
    ids=["policy", "vgpu", "state"],
)
def test_what_is_read_is_written_back_without_effective_values(obj: dict[str, Any]) -> None:
    model = NPUNodeState if obj["kind"] == "NPUNodeState" else NPUNodePolicy
    written = model.model_validate(obj).to_object()
    assert written == obj


def test_objects_of_builders_are_valid() -> None:
    for obj in (quota(cores=300, memory="96Gi", per_pod={"max_cores": 100}), quota(profiles={"L40S-24Q": 0})):
        assert VNPUQuota.strict(obj).to_object() == obj
    assert profile_map(mixed_sizes="Allow")["spec"]["gpus"][0]["mixedSizes"] == "Allow"


def test_a_rule_gives_the_settings_of_its_mode() -> None:
    policy = NPUNodePolicy.model_validate(
        node_policy(
            rules=[
                device_rule("a", mode="Passthrough"),
                device_rule("b", mode="HardVNPU", hard_vnpu={"placement": "Spread"}),
                device_rule("c", mode="Container"),
                device_rule("d", mode="VGPU", vgpu={"profileMapRef": {"name": "m"}}),
                device_rule("e", mode="SoftVNPU", soft_vnpu={"library": {"name": "l", "version": "1"}}),
            ]
        )
    )
    first, second, third, fourth, fifth = policy.spec.devices
    assert first.settings == Passthrough()
    assert isinstance(second.settings, HardVNPU)
    assert second.settings.placement == "Spread"
    assert third.settings is None
    assert fourth.settings == fourth.vgpu
    assert fifth.settings == fifth.soft_vnpu
    assert third.mode is Mode.CONTAINER


def test_models_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Rollout().drain = "IfInUse"  # type: ignore[misc, assignment]
