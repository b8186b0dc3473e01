"""Cards that come, go, and come back while the machine runs."""

from __future__ import annotations

from node_host.pci.device import DEVICES
from tests.contract.acts import (
    attribute,
    driver,
    give_to_vfio,
    kept,
    on_vfio,
    override,
    set_override,
    sleeping,
    there,
    told,
    write,
)
from tests.contract.machine import Machine
from tests.contract.statement import statement


@statement("hotplug.add", "BDFs can move when a card is added")
def plugged(machine: Machine) -> str:
    before = set(machine.host.list(DEVICES))
    card = machine.plug("edu")
    try:
        after = set(machine.host.list(DEVICES))
        state = f"{driver(machine, card)}, override {override(machine, card)}"
        return f"{len(after - before)} more, {len(before - after)} gone, {state}"
    finally:
        machine.unplug(card)


@statement("hotplug.remove", "Entries may vanish")
def unplugged(machine: Machine) -> str:
    card = machine.plug("edu")
    give_to_vfio(machine, card)
    group = machine.host.read_link(attribute(card, "iommu_group")).rpartition("/")[2]
    machine.unplug(card)
    return f"device {there(machine, f'{DEVICES}/{card}')}, node {there(machine, f'/dev/vfio/{group}')}"


@statement("hotplug.waits-for-vfio-user", "blocks until the user lets go")
def remove_waits(machine: Machine) -> str:
    with on_vfio(machine, "other_pf") as card:
        user = machine.use(card)
        with sleeping(machine, attribute(card, "remove"), "1", user.close) as order:
            before = "asleep" if machine.asleep(order) else "not asleep"
            user.close()
            result = order.result()
        gone = there(machine, f"{DEVICES}/{card}")
        machine.rescan()
        return f"{before}, then {result}, {gone}"


@statement("hotplug.remove-and-rescan", "Entries may vanish")
def removed_and_found(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card]:
        native = driver(machine, card)
        set_override(machine, card, "none")
        answers = [write(machine, attribute(card, "remove"), "1"), there(machine, f"{DEVICES}/{card}")]
        answers += [told(machine.rescan), there(machine, f"{DEVICES}/{card}")]
        again = "its driver" if driver(machine, card) == native else driver(machine, card)
        found = f"{answers[3]}, on {again}, override {override(machine, card)}"
        return f"remove: {answers[0]}, {answers[1]}; rescan: {answers[2]}, {found}"
