"""What statements do to a machine, how they read it, and how they leave it as they found it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from node_host.host import Host
from node_host.pci.device import DEVICES, DRIVERS, DRIVERS_PROBE, parse_override
from tests.contract.machine import Machine
from tests.contract.orders import Order, outcome

NOBODY = "0000:ff:1f.7"
VFIO = "vfio-pci"
DRIVERLESS = "driverless"
_STANDING = "other_pf"
_SRIOV = "sriov_numvfs", "sriov_drivers_autoprobe"


def attribute(address: str, name: str) -> str:
    return f"{DEVICES}/{address}/{name}"


def told(order: Callable[[], object]) -> str:
    """ "ok", or the name of the errno that an act ends with."""
    try:
        order()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def write(machine: Machine, path: str, data: str | bytes) -> str:
    """One write; "ok" or the errno's name."""
    return outcome(machine.host, path, data.encode() if isinstance(data, str) else data)


def must(machine: Machine, path: str, data: str | bytes) -> None:
    """A write that only prepares a statement: its failure is an error, not a result."""
    machine.host.write(path, data.encode() if isinstance(data, str) else data)


def text(machine: Machine, path: str) -> str:
    return machine.host.read(path).decode()


def driver_of(host: Host, address: str) -> str | None:
    path = attribute(address, "driver")
    return host.read_link(path).rpartition("/")[2] if host.exists(path) else None


def driver(machine: Machine, address: str) -> str:
    return driver_of(machine.host, address) or DRIVERLESS


def set_override(machine: Machine, address: str, name: str) -> None:
    must(machine, attribute(address, "driver_override"), name + "\n")
    if override(machine, address) != (name or "(null)"):
        raise AssertionError(f"driver_override of {address} reads {override(machine, address)}, not {name}")


def override(machine: Machine, address: str) -> str:
    """driver_override as it reads, its newline left out."""
    return text(machine, attribute(address, "driver_override")).rstrip("\n")


def unbind(machine: Machine, address: str) -> None:
    """Off its driver, if it has one."""
    name = driver_of(machine.host, address)
    if name is not None:
        must(machine, f"{DRIVERS}/{name}/unbind", address)


def bind(machine: Machine, address: str, name: str) -> str:
    return write(machine, f"{DRIVERS}/{name}/bind", address)


def probe(machine: Machine, address: str) -> str:
    return write(machine, DRIVERS_PROBE, address)


def load_vfio(machine: Machine) -> None:
    """vfio-pci and the container's IOMMU backend, which nothing loads by itself in a guest without udev."""
    for module in ("vfio_pci", "vfio_iommu_type1"):
        machine.host.load_module(module)


def give(machine: Machine, address: str, name: str) -> None:
    """To a driver by override, in the order of a careful writer."""
    set_override(machine, address, name)
    unbind(machine, address)
    must(machine, DRIVERS_PROBE, address)
    if driver(machine, address) != name:
        raise AssertionError(f"{address} is on {driver(machine, address)}, not on {name}")


def give_to_vfio(machine: Machine, *addresses: str) -> None:
    load_vfio(machine)
    for address in addresses:
        give(machine, address, VFIO)


def group_of(machine: Machine, address: str) -> int:
    return int(machine.host.read_link(attribute(address, "iommu_group")).rpartition("/")[2])


def group_node(machine: Machine, address: str) -> str:
    return f"/dev/vfio/{group_of(machine, address)}"


def members(machine: Machine, address: str) -> list[str]:
    return machine.host.list(f"/sys/kernel/iommu_groups/{group_of(machine, address)}/devices")


def there(machine: Machine, path: str) -> str:
    return "there" if machine.host.exists(path) else "not there"


def restore(machine: Machine, address: str, former: str | None) -> None:
    """Back to what it was on, without an override."""
    if not machine.host.exists(f"{DEVICES}/{address}"):
        machine.rescan()
    if override(machine, address) != "(null)":
        set_override(machine, address, "")
    if driver_of(machine.host, address) == former:
        return
    unbind(machine, address)
    if former is not None:
        must(machine, f"{DRIVERS}/{former}/bind", address)


@contextmanager
def kept(machine: Machine, *roles: str) -> Iterator[list[str]]:
    """The addresses of roles; afterwards each is on the driver that it was on."""
    addresses = [machine.roles[role] for role in roles]
    former = {address: driver_of(machine.host, address) for address in addresses}
    try:
        yield addresses
    finally:
        for address in addresses:
            restore(machine, address, former[address])


@contextmanager
def on_vfio(machine: Machine, role: str) -> Iterator[str]:
    """A role's device on vfio-pci meanwhile."""
    with kept(machine, role) as [address]:
        give_to_vfio(machine, address)
        yield address


def virtual_functions(machine: Machine, pf: str) -> list[str]:
    """The addresses of a PF's VFs, in the order of their links."""
    links = [name for name in machine.host.list(f"{DEVICES}/{pf}") if name.startswith("virtfn")]
    links.sort(key=lambda name: int(name.removeprefix("virtfn")))
    return [machine.host.read_link(attribute(pf, name)).rpartition("/")[2] for name in links]


def count(machine: Machine, pf: str) -> str:
    return text(machine, attribute(pf, "sriov_numvfs")).strip()


@contextmanager
def vfs(machine: Machine, number: int, *, autoprobe: bool = False) -> Iterator[list[str]]:
    """VFs of the PF meanwhile; without autoprobe no driver takes them by itself."""
    pf = machine.roles["pf"]
    must(machine, attribute(pf, "sriov_drivers_autoprobe"), "1" if autoprobe else "0")
    try:
        must(machine, attribute(pf, "sriov_numvfs"), str(number))
        yield virtual_functions(machine, pf)
    finally:
        must(machine, attribute(pf, "sriov_numvfs"), "0")
        must(machine, attribute(pf, "sriov_drivers_autoprobe"), "1")


@contextmanager
def standing_vfs(machine: Machine, number: int) -> Iterator[list[str]]:
    """VFs of the other card, on no driver before and after. They stand until `settle`, because a card takes seconds to
    make and to destroy them.
    """
    pf = machine.roles[_STANDING]
    if not are_standing(machine):
        must(machine, attribute(pf, "sriov_drivers_autoprobe"), "0")
        must(machine, attribute(pf, "sriov_numvfs"), text(machine, attribute(pf, "sriov_totalvfs")).strip())
    made = virtual_functions(machine, pf)[:number]
    try:
        yield made
    finally:
        for vf in made:
            restore(machine, vf, None)


def are_standing(machine: Machine) -> bool:
    return count(machine, machine.roles[_STANDING]) != "0"


def settle(machine: Machine) -> None:
    """No VFs stand any more."""
    pf = machine.roles[_STANDING]
    if are_standing(machine):
        must(machine, attribute(pf, "sriov_numvfs"), "0")
        must(machine, attribute(pf, "sriov_drivers_autoprobe"), "1")


@contextmanager
def sleeping(machine: Machine, path: str, data: str, wake: Callable[[], None]) -> Iterator[Order]:
    """A write that sleeps until ``wake``, which is called at the latest when the statement is done with it."""
    order = machine.order(path, data.encode())
    try:
        yield order
    finally:
        wake()
        order.result()


def as_found(machine: Machine) -> dict[str, str]:
    """The state that a statement must leave behind as it found it."""
    host = machine.host
    found = {}
    for address in host.list(DEVICES):
        state = [driver(machine, address), parse_override(host.read(attribute(address, "driver_override"))) or "-"]
        present = [name for name in _SRIOV if host.exists(attribute(address, name))]
        state += [f"{name}={text(machine, attribute(address, name)).strip()}" for name in present]
        found[address] = " ".join(state)
    return found
