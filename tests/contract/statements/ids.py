"""new_id and remove_id: an id is a driver's for every device that has it, now and later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from node_host.pci.device import DEVICES, DRIVERS
from tests.contract.acts import (
    VFIO,
    attribute,
    bind,
    driver,
    driver_of,
    kept,
    load_vfio,
    must,
    restore,
    text,
    unbind,
    vfs,
    write,
)
from tests.contract.machine import Machine
from tests.contract.statement import statement

_NEW = f"{DRIVERS}/{VFIO}/new_id"
_REMOVE = f"{DRIVERS}/{VFIO}/remove_id"


def _id(machine: Machine, address: str) -> str:
    vendor, device = (text(machine, attribute(address, name)).strip()[2:] for name in ("vendor", "device"))
    return f"{vendor} {device}"


@contextmanager
def _twins(machine: Machine) -> Iterator[tuple[str, str]]:
    """The twins; afterwards they and every other device with their ids is on what it was on."""
    one, other = machine.roles["twin_a"], machine.roles["twin_b"]
    alike = [address for address in machine.host.list(DEVICES) if _id(machine, address) == _id(machine, one)]
    former = {address: driver_of(machine.host, address) for address in alike}
    try:
        yield one, other
    finally:
        for address in alike:
            restore(machine, address, former[address])


@contextmanager
def _added(machine: Machine, pair: str) -> Iterator[str]:
    """vfio-pci has the id meanwhile; the answer of new_id."""
    load_vfio(machine)
    answer = write(machine, _NEW, pair)
    try:
        yield answer
    finally:
        if answer == "ok":
            must(machine, _REMOVE, pair)


@statement("ids.new-id-takes-twins", "matches every driverless device with the same ids")
def takes_twins(machine: Machine) -> str:
    with _twins(machine) as (one, other), _added(machine, _id(machine, one)) as answer:
        return f"{answer}, {driver(machine, one)}, {driver(machine, other)}"


@statement("ids.new-id-leaves-bound-devices", "triggers matching of every driverless device at once")
def leaves_bound(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card], _added(machine, _id(machine, card)) as answer:
        return f"{answer}, still on {driver(machine, card)}"


@statement("ids.new-id-takes-later-devices", "(twins, VFs that appear later)")
def takes_later(machine: Machine) -> str:
    with _twins(machine) as (twin, _), _added(machine, _id(machine, twin)):
        later = machine.plug("edu")
        try:
            return driver(machine, later)
        finally:
            machine.unplug(later)


@statement("ids.first-registered-driver-wins", "(twins, VFs that appear later)")
def first_registered(machine: Machine) -> str:
    machine.host.load_module("igbvf")
    with vfs(machine, 1) as [first]:
        pair = _id(machine, first)
    with _added(machine, pair), vfs(machine, 1, autoprobe=True) as [later]:
        return f"a VF whose native driver was there first: {driver(machine, later)}"


@statement("ids.exists", "returns EEXIST when repeated")
def twice(machine: Machine) -> str:
    with _twins(machine) as (twin, _), _added(machine, _id(machine, twin)) as answer:
        return f"{answer}, then {write(machine, _NEW, _id(machine, twin))}"


@statement("ids.exists-in-own-table", "EEXIST for an id already present")
def already_in_table(machine: Machine) -> str:
    card = machine.roles["other_pf"]
    return write(machine, f"{DRIVERS}/{driver(machine, card)}/new_id", _id(machine, card))


@statement("ids.bind-after-new-id", "EBUSY possible")
def bind_after(machine: Machine) -> str:
    with _twins(machine) as (twin, _), _added(machine, _id(machine, twin)):
        return f"{bind(machine, twin, VFIO)}, {driver(machine, twin)}"


@statement("ids.bad-format", "`new_id`: EINVAL on a bad format")
def bad_format(machine: Machine) -> str:
    load_vfio(machine)
    answers = [write(machine, _NEW, data) for data in ("nonsense", "1234", "0x1234,0x11e8", "\n")]
    return " ".join(answers)


@statement("ids.no-such-id", "`remove_id`: ENODEV when absent")
def remove_absent(machine: Machine) -> str:
    load_vfio(machine)
    return write(machine, _REMOVE, "1234 11e8")


@statement("ids.remove-bad-format", "`new_id`: EINVAL on a bad format")
def remove_bad_format(machine: Machine) -> str:
    load_vfio(machine)
    return write(machine, _REMOVE, "nonsense")


@statement("ids.remove-keeps-bindings", "`remove_id`: ENODEV when absent")
def remove_keeps(machine: Machine) -> str:
    with _twins(machine) as (twin, _):
        with _added(machine, _id(machine, twin)):
            pass
        after = driver(machine, twin)
        unbind(machine, twin)
        return f"{after}; unbound and bound again: {bind(machine, twin, VFIO)}"
