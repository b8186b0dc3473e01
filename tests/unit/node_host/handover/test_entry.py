"""The shape of an order: what it makes of its device, and nothing else of it."""

from typing import Any

import pytest

from crds.models.node_state import DesiredDevice
from node_host.handover.entry import entry_digest, shape_digest

ENTRY = {
    "address": "0000:27:00.0",
    "identity": {"vendor": "1eff", "device": "1220"},
    "mode": "Passthrough",
    "intent": "Apply",
    "driverName": "npu.rebellions.ai",
    "passthrough": {"driver": "Auto"},
    "decidedBy": {"policy": "vms", "rule": "all"},
}


def _entry(**changes: Any) -> DesiredDevice:
    return DesiredDevice.model_validate(ENTRY | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"intent": "Hold"},
        {"intent": "Release"},
        {"driverName": "npufleet.io"},
        {"onRelease": "Leave"},
        {"decidedBy": {"policy": "others", "rule": "all"}},
        {"identity": {"vendor": "1eff", "device": "1220", "serial": "S1"}},
        {"address": "0000:28:00.0"},
    ],
)
def test_what_changes_nothing_of_the_device_leaves_its_shape(changes: dict[str, Any]) -> None:
    assert shape_digest(_entry(**changes)) == shape_digest(_entry())
    assert entry_digest(_entry(**changes)) != entry_digest(_entry())


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "Container"},
        {"passthrough": {"driver": "Auto", "virtualFunctions": 4}},
        {"passthrough": {"driver": "vfio-pci"}},
        {"mode": "VGPU", "passthrough": None, "vgpu": {"profileMapRef": {"name": "cards"}}},
    ],
)
def test_another_mode_or_another_setting_of_it_is_another_shape(changes: dict[str, Any]) -> None:
    assert shape_digest(_entry(**changes)) != shape_digest(_entry())


def test_the_digest_is_that_of_all_versions() -> None:
    """It lies in checkpoints over upgrades."""
    expected = "0d72f9fbc5184093e3cc548b2cf7b8c7eeb3ce6e66e9b890aaad12d8c586946d"
    assert shape_digest(_entry()) == expected
