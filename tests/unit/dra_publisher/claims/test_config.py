"""The opaque parameters of a VFIO device: exactly one form, the claim over the class, the later over the earlier."""

from __future__ import annotations

from typing import Any

import pytest

from crds.models.modes import IOMMUBackend
from dra_publisher.claims.allocation import OpaqueConfig, Source
from dra_publisher.claims.config import ConfigError, decode, refuse_for_others, settled, wished

GOOD = {"apiVersion": "npufleet.io/v1alpha1", "kind": "VFIODeviceConfig"}


def config(iommu: str | None, source: Source = Source.CLAIM, *requests: str) -> OpaqueConfig:
    return OpaqueConfig(source, requests, GOOD if iommu is None else GOOD | {"iommu": iommu})


@pytest.mark.parametrize("backend", list(IOMMUBackend))
def test_each_interface_can_be_asked_for(backend: IOMMUBackend) -> None:
    assert decode(GOOD | {"iommu": str(backend)}) is backend
    assert decode(GOOD) is IOMMUBackend.AUTO


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (None, "parameters is no object; write apiVersion: npufleet.io/v1alpha1, kind: VFIODeviceConfig"),
        ("x", "parameters is no object"),
        ([], "parameters is no object"),
        ({}, "parameters are of None None; this driver takes apiVersion: npufleet.io/v1alpha1, kind: VFIODeviceConfig"),
        (GOOD | {"kind": "GpuConfig"}, "'GpuConfig'"),
        (GOOD | {"apiVersion": "npufleet.io/v1"}, "'npufleet.io/v1'"),
        (GOOD | {"iomu": "Auto"}, "parameters.iomu: there is no such field; did you mean iommu?"),
        (GOOD | {"zzz": 1}, "parameters.zzz: there is no such field; there are apiVersion, kind, iommu"),
        (GOOD | {"iommu": "IOMMUfd"}, "'IOMMUfd' is not Auto, Legacy, IOMMUFD; did you mean IOMMUFD?"),
        (GOOD | {"iommu": None}, "parameters.iommu: 'None' is not"),
        (GOOD | {"iommu": ["Auto"]}, "parameters.iommu"),
        (GOOD | {"iommu": {}}, "parameters.iommu"),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(parameters: Any, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(parameters)
    assert text in str(caught.value)


def test_the_claim_overrides_the_class_and_the_later_the_earlier() -> None:
    legacy, iommufd, auto = (config(str(one), Source.CLAIM) for one in ("Legacy", "IOMMUFD", "Auto"))
    of_class = config("IOMMUFD", Source.CLASS)
    assert wished([], "npu") is None
    assert wished([legacy, of_class], "npu") is IOMMUBackend.LEGACY
    assert wished([of_class], "npu") is IOMMUBackend.IOMMUFD
    assert wished([legacy, iommufd], "npu") is IOMMUBackend.IOMMUFD
    assert wished([iommufd, legacy, auto], "npu") is IOMMUBackend.AUTO
    assert wished([config("Legacy", Source.CLASS), of_class], "npu") is IOMMUBackend.IOMMUFD


def test_a_configuration_is_for_its_requests_and_for_all_where_it_names_none() -> None:
    one = config("Legacy", Source.CLAIM, "npu")
    assert wished([one], "npu/large") is IOMMUBackend.LEGACY
    assert wished([one], "other") is None
    assert wished([config("Legacy", Source.CLAIM, "npu/large")], "npu/small") is None
    assert wished([config("Legacy")], "whatever") is IOMMUBackend.LEGACY


def test_one_that_is_overridden_has_to_be_right_too() -> None:
    with pytest.raises(ConfigError):
        wished([config("nonsense", Source.CLASS), config("Legacy")], "npu")


def test_the_policy_sets_the_bounds() -> None:
    auto, legacy, iommufd = IOMMUBackend.AUTO, IOMMUBackend.LEGACY, IOMMUBackend.IOMMUFD
    assert [settled(auto, wish) for wish in (None, auto, legacy, iommufd)] == [auto, auto, legacy, iommufd]
    assert [settled(legacy, wish) for wish in (None, auto, legacy)] == [legacy] * 3
    with pytest.raises(ConfigError, match="the node policy gives this device Legacy only"):
        settled(legacy, iommufd)


def test_a_device_that_is_not_given_through_vfio_has_none() -> None:
    refuse_for_others([config("Legacy"), config("Legacy", Source.CLAIM, "other")], "npu", "npu-0000-2b-00-0")
    with pytest.raises(ConfigError, match="is for VFIO devices; request npu got npu-0000-2b-00-0"):
        refuse_for_others([config("Legacy", Source.CLASS, "npu")], "npu", "npu-0000-2b-00-0")
    with pytest.raises(ConfigError):
        refuse_for_others([config("nonsense")], "npu", "npu-0000-2b-00-0")
