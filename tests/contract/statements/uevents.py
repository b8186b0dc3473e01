"""Kernel events about devices: which come, what they carry, and how they are lost."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

from node_host.host import Uevent
from tests.contract.acts import (
    VFIO,
    attribute,
    bind,
    give_to_vfio,
    kept,
    load_vfio,
    must,
    on_vfio,
    set_override,
    unbind,
    write,
)
from tests.contract.machine import Machine
from tests.contract.statement import statement
from tests.contract.tap import Tap


def _shown(event: Uevent | None, address: str) -> str:
    if event is None:
        return "no event"
    slot = "its address" if event.slot == address else str(event.slot)
    place = "its path" if event.devpath.endswith(f"/{address}") else event.devpath
    return f"{event.action} {event.subsystem} {place}, DRIVER {event.driver}, PCI_SLOT_NAME {slot}"


def _of(address: str, action: str) -> Callable[[Uevent], bool]:
    return lambda event: event.slot == address and event.action == action and event.subsystem == "pci"


@statement("uevent.bind-names-driver", "`add`, `remove`, `bind`, `unbind`, `change` with DEVPATH")
def bind_event(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin]:
        load_vfio(machine)
        set_override(machine, twin, VFIO)
        with Tap(machine.host) as tap:
            bind(machine, twin, VFIO)
            return _shown(tap.first(_of(twin, "bind")), twin)


@statement("uevent.unbind", "`add`, `remove`, `bind`, `unbind`, `change` with DEVPATH")
def unbind_event(machine: Machine) -> str:
    with on_vfio(machine, "twin_a") as twin, Tap(machine.host) as tap:
        unbind(machine, twin)
        return _shown(tap.first(_of(twin, "unbind")), twin)


@statement("uevent.remove", "`add`, `remove`, `bind`, `unbind`, `change` with DEVPATH")
def remove_event(machine: Machine) -> str:
    card = machine.plug("edu")
    with Tap(machine.host) as tap:
        machine.unplug(card)
        return _shown(tap.first(_of(card, "remove")), card)


@statement("uevent.remove-of-bound", "`add`, `remove`, `bind`, `unbind`, `change` with DEVPATH")
def remove_of_bound(machine: Machine) -> str:
    card = machine.plug("edu")
    give_to_vfio(machine, card)
    with Tap(machine.host) as tap:
        machine.unplug(card)
        last = tap.first(_of(card, "remove"))
        seen = [event.action for event in tap.seen if event.slot == card and event.subsystem == "pci"]
    return f"{' then '.join(seen)}; DRIVER of the last: {last.driver if last else None}"


@statement("uevent.add", "`add`, `remove`, `bind`, `unbind`, `change` with DEVPATH")
def add_event(machine: Machine) -> str:
    with Tap(machine.host) as tap:
        card = machine.plug("edu")
        event = tap.first(_of(card, "add"))
    machine.unplug(card)
    return _shown(event, card)


@statement("uevent.change-of-pf", "`add`, `remove`, `bind`, `unbind`, `change` with DEVPATH")
def change_event(machine: Machine) -> str:
    pf = machine.roles["pf"]
    must(machine, attribute(pf, "sriov_drivers_autoprobe"), "0")
    try:
        with Tap(machine.host) as tap:
            must(machine, attribute(pf, "sriov_numvfs"), "1")
            event = tap.first(_of(pf, "change"))
            added = [seen.action for seen in tap.seen if seen.subsystem == "pci" and seen.slot != pf]
        return f"{_shown(event, pf)}; VF before it: {' '.join(added)}"
    finally:
        must(machine, attribute(pf, "sriov_numvfs"), "0")
        must(machine, attribute(pf, "sriov_drivers_autoprobe"), "1")


@statement("uevent.synthetic", "SUBSYSTEM=pci, DRIVER, PCI_SLOT_NAME")
def synthetic(machine: Machine) -> str:
    card = machine.roles["other_pf"]
    with Tap(machine.host) as tap:
        answer = write(machine, attribute(card, "uevent"), "change")
        return f"{answer}: {_shown(tap.first(_of(card, 'change')), card)}"


@statement("uevent.synthetic-refuses", "SUBSYSTEM=pci, DRIVER, PCI_SLOT_NAME")
def synthetic_refused(machine: Machine) -> str:
    return write(machine, attribute(machine.roles["other_pf"], "uevent"), "nonsense")


@statement("uevent.lost-when-reader-lags", "they can be lost (ENOBUFS): rescan then")
def lost(machine: Machine) -> str:
    twin = machine.roles["twin_a"]

    async def lag() -> str:
        async with machine.host.events() as events:
            machine.flood(twin)
            must(machine, attribute(twin, "uevent"), "offline")
            try:
                async for event in events:
                    if event.action == "offline":
                        return "nothing lost"
            except OSError as error:
                return errno.errorcode[error.errno or 0]
        return "the stream ended"

    async def again() -> str:
        async with machine.host.events() as events:
            must(machine, attribute(twin, "uevent"), "change")
            async for event in events:
                if event.slot == twin:
                    return event.action
        return "none"

    async def both() -> str:
        async with asyncio.timeout(50):
            return f"{await lag()}, entered again: {await again()}"

    return asyncio.run(both())


@statement("uevent.driver-of-native", "SUBSYSTEM=pci, DRIVER, PCI_SLOT_NAME")
def native_bind_event(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card], Tap(machine.host) as tap:
        must(machine, attribute(card, "driver/unbind"), card)
        must(machine, "/sys/bus/pci/drivers_probe", card)
        tap.first(_of(card, "bind"))
        seen = [event for event in tap.seen if event.slot == card and event.subsystem == "pci"]
        return " ".join(f"{event.action}({event.driver})" for event in seen)
