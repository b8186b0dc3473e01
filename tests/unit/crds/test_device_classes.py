"""DeviceClasses: their names, what they select, and that the base and the command line say the same."""

import re
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml

from cli.main import main
from crds.catalogue import load_catalogue
from crds.device_classes import (
    BASE_DRIVERS,
    classes_of_modes,
    device_classes,
    extended_resource_name,
    profile_class,
    profile_class_name,
)
from crds.device_names import NamedKind
from crds.models.modes import Mode

BASE = Path(__file__).parents[3] / "kustomize/base/device-classes"
PROFILES = Path(__file__).parents[3] / "kustomize/samples/vgpu-device-classes"
DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
DRIVER = "npu.example.com"


def selects(found: dict[str, Any], device: dict[str, Any]) -> bool:
    expressions = [selector["cel"]["expression"] for selector in found["spec"]["selectors"]]
    return all(cel.evaluate(expression, {"device": device}) for expression in expressions)


def published(driver: str, **attributes: Any) -> dict[str, Any]:
    return {"driver": driver, "attributes": {driver: attributes}}


def test_a_driver_name_has_a_class_for_containers_and_one_for_vms() -> None:
    names = [found["metadata"]["name"] for found in device_classes(DRIVER)]
    assert names == ["npu.example.com", "vfio-npu.example.com"]
    assert [found["spec"]["extendedResourceName"] for found in device_classes(DRIVER)] == [
        "npu.example.com/npu",
        "npu.example.com/vfio",
    ]


def test_each_class_selects_devices_of_its_own_type_only() -> None:
    container, vfio = device_classes(DRIVER)
    assert selects(container, published(DRIVER, type="npu"))
    assert not selects(container, published(DRIVER, type="vfio"))
    assert selects(vfio, published(DRIVER, type="vfio"))
    assert not selects(vfio, published(DRIVER, type="npu"))


def test_devices_of_others_are_left_out_without_an_error() -> None:
    for found in device_classes(DRIVER):
        assert not selects(found, published("gpu.example.com", type="npu"))
        assert not selects(found, published("gpu.example.com"))
        assert not selects(found, published(DRIVER, uuid="of another plugin that says no type"))


@pytest.mark.parametrize("driver", ["npu.kubernetes.io", "kubernetes.io", "requests.example.com"])
def test_no_extended_resource_where_the_api_server_takes_none(driver: str) -> None:
    assert extended_resource_name(driver, NamedKind.VFIO) is None
    assert all("extendedResourceName" not in found["spec"] for found in device_classes(driver))


def test_the_class_of_a_profile_selects_vgpus_of_exactly_that_profile() -> None:
    found = profile_class("L40S-24Q")
    assert selects(found, published("npufleet.io", type="vgpu", profile="L40S-24Q"))
    for attributes in ({"profile": "L40S-2Q"}, {"profile": "l40s-24q"}, {"profile": "NVIDIA L40S-24Q"}, {}):
        assert not selects(found, published("npufleet.io", type="vgpu", **attributes))
    assert not selects(found, published("npufleet.io", type="vfio", profile="L40S-24Q"))
    assert not selects(found, published("gpu.example.com", type="vgpu", profile="L40S-24Q"))
    assert not selects(found, published("npufleet.io", profile="L40S-24Q"))


def test_each_profile_of_the_catalogue_has_a_class_of_its_own() -> None:
    names = {one.name for product in load_catalogue().products.values() for one in product.profiles}
    classes = {profile_class_name(name) for name in names}
    assert "vgpu-l40s-24q.npufleet.io" in classes
    assert len(classes) == len(names)
    listed = yaml.safe_load((PROFILES / "kustomization.yaml").read_text())["resources"]
    read = [yaml.safe_load((PROFILES / name).read_text()) for name in listed]
    assert {one["metadata"]["name"] for one in read} == classes
    assert all(len(name) <= 253 and DNS_NAME.fullmatch(name) for name in classes)


def test_the_modes_of_a_policy_say_which_classes_it_needs() -> None:
    assert classes_of_modes(DRIVER, [Mode.PASSTHROUGH, Mode.PASSTHROUGH]) == ("vfio-npu.example.com",)
    assert classes_of_modes(DRIVER, [Mode.PASSTHROUGH, Mode.CONTAINER]) == ("npu.example.com", "vfio-npu.example.com")
    assert classes_of_modes(DRIVER, [Mode.UNMANAGED]) == ()


@pytest.mark.parametrize("driver", BASE_DRIVERS)
def test_the_command_prints_what_the_base_has(driver: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deviceclasses", driver]) == 0
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    assert printed == list(yaml.safe_load_all((BASE / f"{driver}.yaml").read_text())) == list(device_classes(driver))


def test_the_command_prints_any_other_driver_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deviceclasses", DRIVER]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == list(device_classes(DRIVER))


@pytest.mark.parametrize("name", ["", "Upper.case", "a_b", "x" * 64, "a..b", "-a", "a\n"])
def test_what_no_policy_takes_is_wrong_usage(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deviceclasses", "--", name]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "no DRA driver name" in told.err
