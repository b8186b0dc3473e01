"""The machine of the kernel lab is the one that its roles promise, and the way to the host works."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tests.builders.waiting import eventually
from tests.kernel.guest.conftest import Lab
from tests.kernel.lab.guest_side import RESULTS, STATE, CallRefusedError, ask_host
from tests.kernel.lab.python_image import python_folders
from tests.kernel.lab.roles import DISK_MOUNT, ROLES, VF_TOTAL

PCI = Path("/sys/bus/pci/devices")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
REMEMBERED = STATE / "boot-id-of-the-lab-test"


def group(bdf: str) -> set[str]:
    return {entry.name for entry in (PCI / bdf / "iommu_group/devices").iterdir()}


def test_every_role_has_its_device(lab: Lab) -> None:
    assert set(lab.by_role) == set(ROLES)
    assert len(set(lab.by_role.values())) == len(ROLES)


def test_devices_have_their_drivers(lab: Lab) -> None:
    links = {role: PCI / bdf / "driver" for role, bdf in lab.by_role.items()}
    found = {role: link.resolve().name if link.exists() else None for role, link in links.items()}
    assert found == {name: role.driver for name, role in ROLES.items()}


@pytest.mark.parametrize("role", ["pf", "other_pf"])
def test_both_cards_offer_seven_functions_and_start_without(lab: Lab, role: str) -> None:
    assert (PCI / lab[role] / "sriov_totalvfs").read_text() == f"{VF_TOTAL}\n"
    assert (PCI / lab[role] / "sriov_numvfs").read_text() == "0\n"


def test_groups_are_as_the_roles_say(lab: Lab) -> None:
    assert group(lab["shared_a"]) == {lab["shared_a"], lab["shared_b"], lab["shared_bridge"]}
    assert group(lab["route_nic"]) == {lab["route_nic"], lab["beside_route"]}
    port = (PCI / lab["below_port"]).resolve().parent.name
    assert group(lab["below_port"]) == {lab["below_port"], port}
    assert not (PCI / lab["no_group"] / "iommu_group").exists()
    for alone in ("pf", "other_pf", "twin_a", "twin_b", "disk", "display"):
        assert group(lab[alone]) == {lab[alone]}


def test_twins_cannot_be_told_apart_by_their_ids(lab: Lab) -> None:
    identities = [(PCI / lab[role] / "uevent").read_text().replace(lab[role], "") for role in ("twin_a", "twin_b")]
    assert identities[0] == identities[1]
    assert "PCI_ID=1234:11E8" in identities[0]


def test_the_disk_is_mounted_and_holds_data() -> None:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    assert [mount[2] for mount in mounts if mount[1] == str(DISK_MOUNT)] == ["ext4"]
    (DISK_MOUNT / "probe").write_text("written")
    os.sync()  # a try of the boot that the lab has to repeat does not end by itself
    assert (DISK_MOUNT / "probe").read_text() == "written"


def test_the_default_route_goes_over_its_card(lab: Lab) -> None:
    [interface] = (PCI / lab["route_nic"] / "net").iterdir()
    routes = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    assert interface.name in {route[0] for route in routes if route[1] == "00000000"}


def test_the_display_is_the_boot_display(lab: Lab) -> None:
    assert (PCI / lab["display"] / "boot_vga").read_text() == "1\n"


def test_the_kernel_has_what_the_daemons_look_for(lab: Lab) -> None:
    lab.load("vfio-pci")
    assert Path("/sys/bus/pci/drivers/vfio-pci").is_dir()
    lab.load("vgem")
    assert Path("/dev/dri/renderD128").is_char_device()


def test_a_card_is_plugged_in_and_taken_out_by_the_host(lab: Lab) -> None:
    assert lab.plugged() is None
    ask_host("device_add", {"driver": "edu", "bus": "empty_port", "id": "visitor"})
    eventually(lambda: lab.ready() is not None, what="the card in its port")
    bdf = lab.plugged()
    assert bdf is not None
    assert (PCI / bdf / "vendor").read_text() == "0x1234\n"
    ask_host("device_del", {"id": "visitor"})
    eventually(lambda: lab.plugged() is None, what="the card taken out")


def test_the_host_says_why_it_refuses() -> None:
    with pytest.raises(CallRefusedError, match="nobody"):
        ask_host("device_del", {"id": "nobody"})


def test_how_the_guest_runs_is_noted() -> None:
    present = dict(ask_host("query-kvm"))
    accelerator = "kvm" if present["enabled"] else "tcg"
    (RESULTS / "accelerator").write_text(f"{accelerator}, up {time.clock_gettime(time.CLOCK_BOOTTIME):.1f} s\n")
    assert present["present"] or accelerator == "tcg"


def test_an_emulated_processor_loses_nothing_with_one_interrupt_of_its_timer() -> None:
    if dict(ask_host("query-kvm"))["enabled"]:
        return  # there the processors' timers are set anew each time, and lose none
    handlers = re.findall(r"event_handler: +(\w+)", Path("/proc/timer_list").read_text())
    assert handlers.count("tick_handle_periodic") == os.cpu_count(), handlers


def test_python_runs_from_its_disk() -> None:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    covered = {mount[1] for mount in mounts if mount[0] == "/dev/vda"}
    assert set(map(str, python_folders().values())) <= covered


@pytest.mark.before_reboot
def test_the_state_is_kept_for_the_next_boot_and_the_kernel_told_something(lab: Lab) -> None:
    REMEMBERED.write_text(BOOT_ID.read_text())
    autoprobe = PCI / lab["pf"] / "sriov_drivers_autoprobe"
    autoprobe.write_text("0")
    assert autoprobe.read_text() == "0\n"


@pytest.mark.after_reboot
def test_a_reboot_is_another_boot_with_the_state_of_the_first(lab: Lab) -> None:
    assert REMEMBERED.read_text() != BOOT_ID.read_text()
    assert (DISK_MOUNT / "probe").read_text() == "written"
    assert set(lab.by_role) == set(ROLES)


@pytest.mark.after_reboot
def test_a_reboot_forgets_what_the_kernel_was_told(lab: Lab) -> None:
    assert (PCI / lab["pf"] / "sriov_drivers_autoprobe").read_text() == "1\n"
