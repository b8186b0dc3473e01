"""What is seen of a device that keeps new users away."""

from __future__ import annotations

from typing import Any

import pytest

from crds.models.node_state import DeviceUser, UseKind, Veto, VetoReason
from dra_publisher.offers.taints import taints_seen
from node_host.pci.device import PCIDevice
from node_host.pci.iommu import IOMMUGroups
from node_host.view import HostView
from tests.builders.binder import NPU, TWIN

BOOT = "0b5c8f6e-0f57-4b1e-9d5e-7a0c4f1b2d3e"
POD = "5f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c11"


def user(kind: UseKind, *, pod: bool = False) -> DeviceUser:
    return DeviceUser(kind=kind, name="qemu", **({"pod_uid": POD} if pod else {}))


PROCESS, OF_POD = user(UseKind.PROCESS), user(UseKind.PROCESS, pod=True)
CLAIM, BY_KUBELET = user(UseKind.CLAIM), user(UseKind.POD, pod=True)


def view(driver: str = "vfio-pci", **more: Any) -> HostView:
    devices = {one: PCIDevice(one, "1eff", "1250", "120000", driver=driver, iommu_group=20) for one in (NPU, TWIN)}
    return HostView(BOOT, devices=devices, groups=IOMMUGroups(members={20: (NPU, TWIN)}), **more)


def taints(there: HostView) -> set[str]:
    return {f"{taint.key.partition('/')[2]}={taint.value}" for taint in taints_seen(NPU, there)}


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        ((), set()),
        ((CLAIM,), set()),
        ((CLAIM, OF_POD, BY_KUBELET), set()),
        ((CLAIM, PROCESS), {"in-use=UsedOutside"}),
        ((PROCESS,), {"in-use=UsedOutside"}),
        ((OF_POD,), {"in-use=UsedOutside"}),
        ((BY_KUBELET,), {"in-use=UsedOutside"}),
        ((user(UseKind.HOLDER),), {"in-use=UsedOutside"}),
        ((user(UseKind.VIRTUAL_FUNCTIONS),), set()),
        ((user(UseKind.UNREADABLE),), set()),
    ],
    ids=str,
)
def test_who_uses_a_device_without_a_claim_on_it_keeps_others_away(
    users: tuple[DeviceUser, ...], expected: set[str]
) -> None:
    assert taints(view(users={NPU: users})) == expected


def test_a_vm_that_has_another_device_of_the_group_is_no_user_outside() -> None:
    assert taints(view(users={NPU: (OF_POD,), TWIN: (CLAIM, OF_POD)})) == {"in-use=GroupInUse"}
    assert taints(view(users={NPU: (PROCESS,), TWIN: (CLAIM, OF_POD)})) == {"in-use=UsedOutside"}


def test_a_veto_keeps_vms_away_and_not_containers() -> None:
    vetoes = {NPU: (Veto(reason=VetoReason.GROUP_MEMBER, message="the default route is in its group"),)}
    assert taints(view(vetoes=vetoes)) == {"vetoed=Vetoed"}
    assert taints(view("rebellions", vetoes=vetoes)) == set()
    (vgpu,) = taints_seen(NPU, view("nvidia", vetoes=vetoes), is_vgpu=True)
    assert vgpu.key == "npufleet.io/vetoed", "a vGPU goes to a VM, whatever its function's driver is"


def test_a_device_that_cannot_be_read_is_unhealthy() -> None:
    there = view()
    broken = HostView(BOOT, unreadable={NPU: "Input/output error"}, groups=there.groups)
    assert taints(broken) == {"unhealthy=Unhealthy"}
