"""What is decided of the devices of one IOMMU group that are ordered to VMs. Pure.

The group goes as a whole or not at all: nothing is bound while one member that would have to follow cannot.
"""

from collections.abc import Iterator

from crds.models.bindings import BindingReason as Reason
from crds.models.modes import IOMMUBackend
from crds.models.node_state import DeviceState
from node_host.acting.actions import Bind, Remember
from node_host.pci.device import PCIDevice, is_address
from node_host.pci.vfio_drivers import VFIO_PCI, is_vfio_driver, module_of
from node_host.pci.viability import STUB, allows_user
from vfio_binder.decisions import Decision, placed_report
from vfio_binder.situation import AUTO, Block, Situation, Want, blocked, gravest, returned_already


def decide_group(situation: Situation, members: tuple[str, ...]) -> dict[str, Decision]:
    """Decisions for the members that are ordered to VFIO, and for companions that are bound with them."""
    return _Group(situation, members).decide()


class _Group:
    def __init__(self, situation: Situation, members: tuple[str, ...]) -> None:
        self._situation = situation
        self._members = members
        self._wanters = tuple(address for address in members if situation.want(address) is Want.VFIO)
        # Members that cannot be where they should be.
        self._blocks: dict[str, Block] = {}
        # Members that have to be bound, companions with the devices that they are bound for.
        self._moves: dict[str, tuple[str, ...]] = {}

    def decide(self) -> dict[str, Decision]:
        for address in self._wanters:
            block = self._order_block(address)
            if block is not None:
                self._blocks[address] = block
            elif not self._situation.is_placed(address):
                self._moves[address] = ()
        able = tuple(address for address in self._wanters if address not in self._blocks)
        if able:
            self._take_companions(able)
        self._wait_for_returns()
        for address in self._moves:
            block = self._situation.bind_block(address)
            if block is not None:
                self._blocks[address] = block
        in_the_way = {address: block for address, block in self._blocks.items() if not self._is_viable(address)}
        decisions = {address: self._of_wanter(address, in_the_way) for address in self._wanters}
        if not in_the_way:
            for address in self._moves.keys() - decisions.keys() - self._blocks.keys():
                decisions[address] = self._of_companion(address)
        return decisions

    def _order_block(self, address: str) -> Block | None:
        """Why the order cannot be met whatever is written."""
        situation = self._situation
        absent = situation.absent(address)
        if absent is not None:
            return absent
        wrong = situation.identity_block(address)
        if wrong is not None:
            return wrong
        order = situation.passthrough(address)
        if order.driver != AUTO and not is_vfio_driver(order.driver):
            return blocked(Reason.DRIVER_MISSING, f"passthrough.driver {order.driver} is no VFIO driver; use Auto")
        driver = situation.view.devices[address].driver
        if is_vfio_driver(driver) and not situation.is_placed(address) and situation.ours(address) is None:
            text = (
                f"it is on {driver} and not by npufleet, the order wants {order.driver}: move it by hand, or use Auto"
            )
            return blocked(Reason.BOUND_BY_OTHERS, text)
        return None

    def _take_companions(self, able: tuple[str, ...]) -> None:
        """Judge every other member: it leaves the group to a user as it is, or follows, or is in the way."""
        situation = self._situation
        binds = any(situation.binds_companions(address) for address in able)
        for address in self._members:
            if address in able or address in self._blocks:
                continue
            device = situation.view.devices.get(address)
            if device is None:
                self._blocks[address] = self._unknown(address)
            elif device.is_bridge or is_vfio_driver(device.driver) or device.driver == STUB:
                if not allows_user(device):
                    text = f"{address} is a bridge on {device.driver}, which does not share its group"
                    self._blocks[address] = blocked(Reason.COMPANIONS_REFUSED, text)
            elif device.driver is not None or binds:
                self._take_companion(address, device, able, binds=binds)

    def _take_companion(self, address: str, device: PCIDevice, able: tuple[str, ...], *, binds: bool) -> None:
        situation = self._situation
        ordered = situation.want(address)
        if ordered is Want.FUNCTIONS:
            text = f"{address} stays with the host for its virtual functions, and shares the IOMMU group"
            block = blocked(Reason.COMPANION_MANAGED, text)
        elif ordered in (Want.NATIVE, Want.HOLD):
            block = self._managed(address)
        elif not binds:
            text = f"{address} of the same IOMMU group is on {device.driver}; companions: Bind would take it along"
            block = blocked(Reason.COMPANIONS_REFUSED, text)
        else:
            self._moves[address] = able
            return
        if device.driver is not None:
            self._blocks[address] = block

    def _managed(self, address: str) -> Block:
        entry = self._situation.entries[address]
        what = "held" if self._situation.want(address) is Want.HOLD else f"ordered {entry.mode}"
        by = f"{what} by policy {entry.decided_by.policy}, rule {entry.decided_by.rule}"
        return blocked(Reason.COMPANION_MANAGED, f"{address} is {by}")

    def _wait_for_returns(self) -> None:
        """Nothing is bound beside a member that goes, or waits to go, back to a driver of the host."""
        block = next((self._managed(address) for address in self._members if self._goes_back(address)), None)
        if block is not None:
            self._blocks |= dict.fromkeys(self._moves, block)
            self._moves.clear()

    def _goes_back(self, address: str) -> bool:
        situation = self._situation
        entry, device = situation.ours(address), situation.view.devices.get(address)
        if entry is None or device is None or situation.want(address) is not Want.NATIVE:
            return False
        if situation.identity_block(address) is not None or returned_already(device, entry):
            return False
        return entry.former_driver not in ("", STUB)

    def _unknown(self, address: str) -> Block:
        absent = self._situation.absent(address)
        if absent is not None and is_address(address):
            return absent
        return blocked(Reason.COMPANIONS_REFUSED, f"{address} is no PCI device, so it cannot go to a VM with the group")

    def _is_viable(self, address: str) -> bool:
        device = self._situation.view.devices.get(address)
        return device is not None and allows_user(device)

    def _of_wanter(self, address: str, in_the_way: dict[str, Block]) -> Decision:
        situation = self._situation
        own = self._blocks.get(address)
        if own is not None or in_the_way:
            is_begun = own is not None and own.state is not DeviceState.FAILED and address in self._moves
            companions = self._failed_companions() if is_begun else ()
            block = gravest((*companions, own, *self._of_others(in_the_way, address)))
            if block is not None:
                return Decision(situation.report_block(address, block))
        if address in self._moves:
            return self._bind(address, situation.module(address), situation.passthrough(address).iommu)
        fault = situation.view.groups.fault(situation.view.devices[address].iommu_group)
        if fault is not None:
            block = blocked(Reason.DEVICE_UNREADABLE, f"its IOMMU group cannot be read: {fault}")
            return Decision(situation.report_block(address, block))
        coming = self._moves.keys() - self._blocks.keys()
        if coming:
            text = f"waits for {', '.join(sorted(coming))} of its IOMMU group"
            return Decision(situation.report(address, DeviceState.PENDING, Reason.BINDING, text))
        entry = situation.ours(address)
        if entry is not None and entry.companion_of:
            # It has orders of its own now: without them it is held, and does not go back with the others.
            return Decision(placed_report(situation, address), note=Remember(address, situation.new_entry(address)))
        return Decision(placed_report(situation, address))

    def _failed_companions(self) -> Iterator[Block]:
        """A companion was moved for those that it goes with, so what became of it is theirs too."""
        for address, block in sorted(self._blocks.items()):
            if address not in self._wanters and block.state is DeviceState.FAILED:
                yield block.for_group(address)

    @staticmethod
    def _of_others(in_the_way: dict[str, Block], address: str) -> Iterator[Block]:
        return (in_the_way[other].for_group(other) for other in sorted(in_the_way) if other != address)

    def _of_companion(self, address: str) -> Decision:
        # A companion is not opened by anybody, so it does not matter which nodes it has.
        return self._bind(address, module_of(VFIO_PCI), IOMMUBackend.AUTO)

    def _bind(self, address: str, module: str, backend: IOMMUBackend) -> Decision:
        situation = self._situation
        seen = situation.view.devices[address].driver
        if situation.want(address) is Want.RELEASE:
            report = situation.report(address, DeviceState.RELEASED, Reason.RELEASED)
        else:
            report = situation.report(address, DeviceState.PENDING, Reason.BINDING, f"going to the driver of {module}")
        entry = situation.new_entry(address, self._moves[address])
        return Decision(report, action=Bind(address, module, seen, entry, backend))
