"""Reading what goes away, and what cannot answer."""

from __future__ import annotations

from node_host.pci.device import DEVICES
from tests.contract.acts import attribute, told
from tests.contract.machine import Machine
from tests.contract.statement import statement


@statement("read.vanished-entry", "vanish between listing and reading (ENOENT, ENODEV)")
def vanished(machine: Machine) -> str:
    card = machine.plug("edu")
    try:
        listed = card in machine.host.list(DEVICES)
    finally:
        machine.unplug(card)
    return f"listed: {listed}, read after: {told(lambda: machine.host.read(attribute(card, 'vendor')))}"


@statement("read.opened-before", "vanish between listing and reading (ENOENT, ENODEV)")
def opened_before(machine: Machine) -> str:
    card = machine.plug("edu")
    reader = machine.opened(attribute(card, "vendor"))
    try:
        machine.unplug(card)
        return told(reader.read)
    finally:
        reader.close()


@statement("write.device-vanished", "`drivers_probe`: ENODEV for an unknown device")
def probe_of_vanished(machine: Machine) -> str:
    card = machine.plug("edu")
    machine.unplug(card)
    answers = [told(lambda: machine.host.write("/sys/bus/pci/drivers_probe", card.encode()))]
    answers.append(told(lambda: machine.host.write(attribute(card, "driver_override"), b"vfio-pci")))
    return f"drivers_probe: {answers[0]}, its driver_override: {answers[1]}"


@statement(
    "read.sick-device",
    "can fail with EIO/ENODEV or hang",
    not_on_linux="emulated cards answer in every power state and are never half removed",
)
def sick(machine: Machine) -> str:
    twin = machine.roles["twin_a"]
    with machine.sick(attribute(twin, "config"), "EIO"):
        during = told(lambda: machine.host.read(attribute(twin, "config")))
    return f"{during}, well again: {told(lambda: machine.host.read(attribute(twin, 'config')))}"
