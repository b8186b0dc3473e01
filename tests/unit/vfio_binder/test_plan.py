"""The plan as a pure function: the same input in any order gives the same plan, with no host behind it."""

import itertools

import pytest

from crds.models.bindings import BindingReason as Reason
from node_host.acting.actions import Bind, Forget, Outcome, Result, Return, describe
from node_host.acting.journal import JournalEntry, JournalState
from node_host.pci.device import PCIDevice
from node_host.pci.iommu import IOMMUGroups
from node_host.view import HostView
from tests.builders.binder import NPU, TWIN, order, spec
from vfio_binder.plan import Plan, plan

BOOT = "boot-1"
THIRD = "0000:23:00.1"


def device(address: str, driver: str | None = "rebellions", group: int | None = 20, **more: object) -> PCIDevice:
    return PCIDevice(address, "1eff", "1250", "120000", driver=driver, iommu_group=group, **more)  # type: ignore[arg-type]


def view(*devices: PCIDevice, **more: object) -> HostView:
    groups: dict[int, tuple[str, ...]] = {}
    for one in devices:
        if one.iommu_group is not None:
            groups[one.iommu_group] = tuple(sorted((*groups.get(one.iommu_group, ()), one.address)))
    return HostView(
        boot_id=BOOT,
        devices={one.address: one for one in devices},
        groups=IOMMUGroups(groups),
        users={one.address: () for one in devices},
        vfio_nodes=frozenset({"/dev/vfio/20", "/dev/vfio/21"}),
        **more,  # type: ignore[arg-type]
    )


def entry(former: str = "rebellions", boot: str = BOOT, companion_of: tuple[str, ...] = ()) -> JournalEntry:
    return JournalEntry(former, "vfio-pci", boot, "1eff:1250", None, companion_of)


def made(host: HostView, *entries: dict[str, object], journal: dict[str, JournalEntry] | None = None) -> Plan:
    return plan(spec(*entries), host, JournalState(journal or {}))


def reasons(found: Plan) -> dict[str, str]:
    return {report.address: str(report.reason) for report in found.reports}


def test_the_order_in_which_orders_and_devices_come_does_not_matter() -> None:
    devices = [device(NPU), device(TWIN, group=21), device(THIRD, "vfio-pci")]
    entries = [order(companions="Bind"), order(TWIN), order(THIRD, intent="Release")]
    journal = {THIRD: entry()}
    plans = {
        repr(made(view(*some), *others, journal=journal))
        for some in itertools.permutations(devices)
        for others in itertools.permutations(entries)
    }
    assert len(plans) == 1


def test_a_device_that_was_not_looked_at_closely_counts_as_in_use() -> None:
    host = view(device(NPU))
    blind = HostView(host.boot_id, host.devices, groups=host.groups)
    found = made(blind, order())
    assert (found.is_empty, reasons(found)) == (True, {NPU: "InUse"})


def test_a_plan_is_made_by_group_with_returns_first_and_companions_before_their_device() -> None:
    host = view(device(NPU), device(THIRD), device("0000:23:00.2", "vfio-pci"), device(TWIN, group=21))
    found = made(
        host,
        order(companions="Bind"),
        order("0000:23:00.2", mode="Container"),
        order(TWIN),
        # It had no driver, so it does not keep its group from a VM once it is back.
        journal={"0000:23:00.2": entry(former="")},
    )
    first, second = found.groups
    assert (first.key, first.locks) == ("group-20", ("group-20",))
    assert [(type(action), action.address) for action in first.actions] == [
        (Return, "0000:23:00.2"),
        (Bind, THIRD),
        (Bind, NPU),
    ]
    assert first.actions[1].entry.companion_of == (NPU,)
    assert second.key == "group-21"


def test_a_card_and_its_functions_share_the_card_s_lock() -> None:
    card = device(NPU, total_vfs=4)
    function = device("0000:23:00.4", None, 21, physical_function=NPU)
    found = made(view(card, function), order(), order("0000:23:00.4"))
    assert [group.locks for group in found.groups] == [("group-20", f"pf-{NPU}"), ("group-21", f"pf-{NPU}")]


def test_a_failed_attempt_and_a_stuck_lock_keep_a_device_as_it_is_with_their_words() -> None:
    host = view(device(NPU), device(TWIN, group=21))
    failed = Outcome(NPU, Result.FAILED, Reason.BIND_FAILED, "unbind: EIO")
    found = plan(
        spec(order(), order(TWIN)),
        host,
        JournalState(),
        attempts={NPU: failed},
        stuck={"group-21": "writing it has not come back"},
    )
    assert found.is_empty
    assert [(str(report.state), report.message) for report in found.reports] == [
        ("Failed", "unbind: EIO"),
        ("Blocked", "writing it has not come back"),
    ]


def test_an_entry_of_the_journal_that_says_nothing_any_more_is_dropped() -> None:
    host = view(device(NPU), device(TWIN, "vfio-pci", 21))
    journal = {NPU: entry(boot="boot-0"), TWIN: entry(boot="boot-0"), THIRD: entry()}
    found = made(host, order(TWIN), journal=journal)
    assert found.groups == ()
    assert {(type(note), note.address) for note in found.notes} == {(Forget, NPU), (Forget, TWIN), (Forget, THIRD)}
    assert reasons(found) == {TWIN: "Adopted"}
    assert all(describe(note).startswith("forget ") for note in found.notes)


def test_a_replaced_device_is_not_given_back_for_the_one_that_was_there() -> None:
    host = view(device(NPU, "vfio-pci"))
    journal = {NPU: JournalEntry("nvidia", "vfio-pci", BOOT, "10de:26b1")}
    found = made(host, journal=journal)
    assert (found.groups, found.reports) == ((), ())
    assert [note.address for note in found.notes] == [NPU]


def test_nothing_is_planned_and_nothing_forgotten_while_the_bus_cannot_be_listed() -> None:
    host = HostView(BOOT, problem="the bus cannot be listed")
    found = made(host, order(), order(TWIN, intent="Release"), journal={NPU: entry(), TWIN: entry(), THIRD: entry()})
    assert found.is_empty
    assert set(reasons(found).values()) == {"DeviceUnreadable", "Orphaned"}


@pytest.mark.parametrize(
    ("kind", "is_bridge"), [("060400", True), ("060000", True), ("060100", True), ("068000", False)]
)
def test_bridges_stay_with_the_host_and_switches_between_accelerators_are_no_bridges(
    kind: str, is_bridge: bool
) -> None:
    function = PCIDevice(NPU, "1eff", "1250", kind, iommu_group=20)
    found = made(view(function), order())
    assert reasons(found) == {NPU: "Bridge" if is_bridge else "Binding"}
    assert found.is_empty is is_bridge
