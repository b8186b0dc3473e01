"""Virtual functions: making them, counting them, losing them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from node_host.pci.device import DEVICES
from tests.contract.acts import (
    VFIO,
    attribute,
    bind,
    count,
    driver,
    give_to_vfio,
    kept,
    load_vfio,
    must,
    probe,
    set_override,
    sleeping,
    text,
    there,
    unbind,
    vfs,
    virtual_functions,
    write,
)
from tests.contract.machine import Machine
from tests.contract.statement import statement

_NUMVFS = "sriov_numvfs"


def _write(machine: Machine, number: str) -> str:
    return write(machine, attribute(machine.roles["pf"], _NUMVFS), number)


@contextmanager
def _no_vfs_afterwards(machine: Machine) -> Iterator[str]:
    pf = machine.roles["pf"]
    must(machine, attribute(pf, "sriov_drivers_autoprobe"), "0")
    try:
        yield pf
    finally:
        must(machine, attribute(pf, _NUMVFS), "0")
        must(machine, attribute(pf, "sriov_drivers_autoprobe"), "1")


@statement("sriov.creates-vfs", "`sriov_numvfs`: write 0 before another non-zero value")
def makes(machine: Machine) -> str:
    with _no_vfs_afterwards(machine) as pf:
        answer = _write(machine, "2")
        made = virtual_functions(machine, pf)
        return f"{answer}, reads {count(machine, pf)}, {len(made)} virtfn links, all there: " + str(
            all(machine.host.exists(f"{DEVICES}/{vf}") for vf in made)
        )


@statement("sriov.number-cannot-change", "EBUSY for non-zero → other non-zero")
def change(machine: Machine) -> str:
    with vfs(machine, 2):
        more, fewer = _write(machine, "3"), _write(machine, "1")
        return f"more: {more}, fewer: {fewer}, still {count(machine, machine.roles['pf'])}"


@statement("sriov.zero-then-other", "write 0 before another non-zero value (else EBUSY)")
def change_by_zero(machine: Machine) -> str:
    with vfs(machine, 2):
        answers = _write(machine, "0"), _write(machine, "3")
        return f"{' '.join(answers)}, reads {count(machine, machine.roles['pf'])}"


@statement("sriov.same-number-does-nothing", "equal value: no-op success")
def equal(machine: Machine) -> str:
    with vfs(machine, 2) as [first, _]:
        give_to_vfio(machine, first)
        return f"{_write(machine, '2')}, VF still on {driver(machine, first)}"


@statement("sriov.zero-when-zero", "equal value: no-op success")
def zero_when_zero(machine: Machine) -> str:
    return _write(machine, "0")


@statement("sriov.not-a-number", "EINVAL not a number")
def not_a_number(machine: Machine) -> str:
    return " ".join(_write(machine, data) for data in ("two", "-1", "\n", "1 2"))


@statement("sriov.too-many", "ERANGE above `sriov_totalvfs`")
def above_total(machine: Machine) -> str:
    pf = machine.roles["pf"]
    total = int(text(machine, attribute(pf, "sriov_totalvfs")))
    return f"{_write(machine, str(total + 1))}, reads {count(machine, pf)}"


@statement("sriov.no-driver", "ENOENT when the PF has no driver")
def no_driver(machine: Machine) -> str:
    with kept(machine, "pf") as [pf]:
        unbind(machine, pf)
        return f"1: {_write(machine, '1')}, 0: {_write(machine, '0')}"


@statement("sriov.driver-without-support", "the driver has no SR-IOV support")
def driver_without_support(machine: Machine) -> str:
    with kept(machine, "pf") as [pf]:
        give_to_vfio(machine, pf)
        return _write(machine, "1")


@statement("sriov.total-is-enough", "writes totalvfs into numvfs")
def all_of_them(machine: Machine) -> str:
    pf = machine.roles["pf"]
    with _no_vfs_afterwards(machine):
        answer = _write(machine, text(machine, attribute(pf, "sriov_totalvfs")).strip())
        return f"{answer}, {len(virtual_functions(machine, pf))} VFs"


@statement("sriov.autoprobe-off", "`sriov_drivers_autoprobe`=0")
def autoprobe_off(machine: Machine) -> str:
    machine.host.load_module("igbvf")
    with vfs(machine, 1) as [vf]:
        made = driver(machine, vf)
        return f"made: {made}; {probe(machine, vf)} by drivers_probe: {driver(machine, vf)}"


@statement("sriov.autoprobe-off-bind", "`sriov_drivers_autoprobe`=0")
def autoprobe_off_bind(machine: Machine) -> str:
    machine.host.load_module("igbvf")
    with vfs(machine, 1) as [vf]:
        return f"{bind(machine, vf, 'igbvf')}, {driver(machine, vf)}"


@statement("sriov.autoprobe-on", "`sriov_drivers_autoprobe`=0")
def autoprobe_on(machine: Machine) -> str:
    machine.host.load_module("igbvf")
    with vfs(machine, 1, autoprobe=True) as [vf]:
        return "driverless" if driver(machine, vf) == "driverless" else "taken by a driver"


@statement("sriov.autoprobe-off-with-override", "With an override set, `drivers_probe` works even when")
def autoprobe_off_override(machine: Machine) -> str:
    load_vfio(machine)
    with vfs(machine, 1) as [vf]:
        set_override(machine, vf, VFIO)
        return f"{probe(machine, vf)}, {driver(machine, vf)}"


@statement("sriov.destroys-vfs", "destroying VFs under a VM is possible")
def destroys_bound(machine: Machine) -> str:
    with vfs(machine, 2) as made:
        give_to_vfio(machine, *made)
        answer = _write(machine, "0")
        gone = [there(machine, f"{DEVICES}/{vf}") for vf in made]
        return f"{answer}, {' and '.join(gone)}"


@statement("sriov.zero-waits-for-vfio-user", "destroying VFs under a VM is possible and fatal for it")
def destroys_held(machine: Machine) -> str:
    with vfs(machine, 1) as [vf]:
        give_to_vfio(machine, vf)
        user = machine.use(vf)
        with sleeping(machine, attribute(machine.roles["pf"], _NUMVFS), "0", user.close) as order:
            before = "asleep" if machine.asleep(order) else "not asleep"
            asked = "asked" if user.requested() else "not asked"
            user.close()
            return f"{before}, user {asked}, then {order.result()}, VF {there(machine, f'{DEVICES}/{vf}')}"


@statement("sriov.unbound-pf-loses-vfs", "unbinds the PF")
def unbinding_pf(machine: Machine) -> str:
    with kept(machine, "pf") as [pf], vfs(machine, 1) as [vf]:
        unbind(machine, pf)
        left = f"numvfs {count(machine, pf)}, VF {there(machine, f'{DEVICES}/{vf}')}"
        must(machine, f"/sys/bus/pci/drivers/{'igb'}/bind", pf)
        return left


@statement("identity.sriov-files-on-pf-only", "PF only (absence of totalvfs ⇒ not a PF)")
def files_on_pf_only(machine: Machine) -> str:
    with vfs(machine, 1) as [vf]:
        places = {"PF": machine.roles["pf"], "VF": vf, "other": machine.roles["twin_a"]}
        return ", ".join(f"{name} {there(machine, attribute(place, _NUMVFS))}" for name, place in places.items())


@statement(
    "sriov.fewer-than-asked",
    "Fewer VFs than asked is possible",
    not_on_linux="the drivers of the emulated cards make as many VFs as they are asked for, or none",
)
def fewer(machine: Machine) -> str:
    pf = machine.roles["few_pf"]
    try:
        answer = write(machine, attribute(pf, _NUMVFS), "2")
        return f"asked for 2: {answer}, reads {count(machine, pf)}"
    finally:
        must(machine, attribute(pf, _NUMVFS), "0")


@statement(
    "sriov.driver-error",
    'ENOMEM/"not enough MMIO"',
    not_on_linux="the guest's firmware gives the emulated card all the bus numbers and memory that its VFs need",
)
def no_memory(machine: Machine) -> str:
    pf = machine.roles["starved_pf"]
    return f"{write(machine, attribute(pf, _NUMVFS), '2')}, reads {count(machine, pf)}"


@statement(
    "sriov.no-bus-number",
    "ENOMEM for missing bus numbers or MMIO",
    not_on_linux="the guest's firmware gives the emulated card all the bus numbers and memory that its VFs need",
)
def no_room(machine: Machine) -> str:
    pf = machine.roles["cramped_pf"]
    return f"{write(machine, attribute(pf, _NUMVFS), '2')}, reads {count(machine, pf)}"
