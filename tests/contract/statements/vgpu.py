"""NVIDIA's vGPU types on virtual functions, as a driver of that name and shape shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from node_host.evidence.open_handles import read_open_handles
from node_host.pci.device import DEVICES
from tests.contract.acts import (
    VFIO,
    attribute,
    bind,
    count,
    driver,
    give,
    group_node,
    load_vfio,
    must,
    probe,
    set_override,
    sleeping,
    standing_vfs,
    text,
    there,
    unbind,
    vfs,
    virtual_functions,
    write,
)
from tests.contract.machine import Machine
from tests.contract.statement import Facts, over_reboot, statement, unshown

_DRIVER = "nvidia"
_HALF = "NVIDIA L40S-24Q"
_WHOLE = "NVIDIA L40S-48Q"


@contextmanager
def _card(machine: Machine, number: int) -> Iterator[list[str]]:
    """VFs on the driver, whichever else would take them."""
    machine.load_vgpu()
    with standing_vfs(machine, number) as made:
        for vf in made:
            give(machine, vf, _DRIVER)
        yield made


@contextmanager
def _new_card(machine: Machine, number: int) -> Iterator[list[str]]:
    """The same with VFs that are made for the statement, and destroyed."""
    machine.load_vgpu()
    with vfs(machine, number) as made:
        for vf in made:
            give(machine, vf, _DRIVER)
        yield made


def _current(vf: str) -> str:
    return attribute(vf, "nvidia/current_vgpu_type")


def _listed(machine: Machine, vf: str) -> dict[str, str]:
    """The types that a VF offers: name to id."""
    lines = text(machine, attribute(vf, "nvidia/creatable_vgpu_types")).splitlines()[1:]
    rows = [line.partition(":") for line in lines]
    return {name.strip(): number.strip() for number, _, name in rows}


def _sizes(machine: Machine, vf: str) -> str:
    return " ".join(name.removeprefix("NVIDIA L40S-") for name in _listed(machine, vf)) or "none"


def _create(machine: Machine, vf: str, name: str) -> str:
    return write(machine, _current(vf), _listed(machine, vf)[name])


@statement("vgpu.no-mdev-bus", "no `/sys/class/mdev_bus`")
def no_mdev(machine: Machine) -> str:
    with _card(machine, 1):
        return f"/sys/class/mdev_bus {there(machine, '/sys/class/mdev_bus')}"


@statement("vgpu.vf-stays-on-nvidia", "VF stays on driver **nvidia**")
def stays_on_nvidia(machine: Machine) -> str:
    with _card(machine, 1) as [vf]:
        _create(machine, vf, _HALF)
        return driver(machine, vf)


@statement("vgpu.own-vfio-nodes", "the VF gets vfio-dev/ and a group node from nvidia's own provider")
def own_nodes(machine: Machine) -> str:
    with _card(machine, 1) as [vf]:
        names = [re.sub(r"\d+", "<k>", name) for name in machine.host.list(attribute(vf, "vfio-dev"))]
        return f"vfio-dev/{' '.join(names)}, group node {there(machine, group_node(machine, vf))}"


@statement("vgpu.all-vfs", "Always all VFs")
def all_vfs(machine: Machine) -> str:
    total = int(text(machine, attribute(machine.roles["pf"], "sriov_totalvfs")))
    with _new_card(machine, total) as made:
        offering = [vf for vf in made if _listed(machine, vf)]
        return f"{len(made)} VFs, {len(offering)} offer types"


@statement("vgpu.list", "header line, then `<id> : <name>`")
def listing(machine: Machine) -> str:
    with _card(machine, 1) as [vf]:
        return repr(text(machine, attribute(vf, "nvidia/creatable_vgpu_types")))


@statement("vgpu.no-type-at-first", "read back to verify")
def no_type(machine: Machine) -> str:
    with _card(machine, 1) as [vf]:
        return repr(text(machine, _current(vf)))


@statement("vgpu.sets-type", "Write the id to `current_vgpu_type`")
def sets_type(machine: Machine) -> str:
    with _card(machine, 1) as [vf]:
        answer = _create(machine, vf, _HALF)
        return f"{answer}, reads {text(machine, _current(vf))!r}, offers {_sizes(machine, vf)}"


@statement("vgpu.same-type-again", "read back to verify")
def same_again(machine: Machine) -> str:
    with _card(machine, 1) as [vf]:
        number = _listed(machine, vf)[_HALF]
        answers = [write(machine, _current(vf), number) for _ in range(2)]
        return f"{' '.join(answers)}, reads {text(machine, _current(vf))!r}"


@statement("vgpu.zero-clears", '"0" clears')
def zero_clears(machine: Machine) -> str:
    with _card(machine, 1) as [vf]:
        _create(machine, vf, _HALF)
        answer = write(machine, _current(vf), "0")
        return f"{answer}, reads {text(machine, _current(vf))!r}, offers {_sizes(machine, vf)}"


@statement("vgpu.unlisted-id", "A non-listed id gives an I/O error")
def unlisted(machine: Machine) -> str:
    with _card(machine, 1) as [vf]:
        unknown = write(machine, _current(vf), "7")
        _create(machine, vf, _HALF)
        set_already = write(machine, _current(vf), str(int(text(machine, _current(vf))) - 1))
        return f"unknown: {unknown}, another while one is set: {set_already}"


@statement("vgpu.garbage", "A non-listed id gives an I/O error")
def garbage(machine: Machine) -> str:
    with _card(machine, 1) as [vf]:
        return " ".join(write(machine, _current(vf), data) for data in ("L40S-24Q", "-1", "\n"))


@statement("vgpu.held", "Writing while a VM holds the VF is refused or destructive")
def held(machine: Machine) -> str:
    with _card(machine, 1) as [vf]:
        number = _listed(machine, vf)[_HALF]
        _create(machine, vf, _HALF)
        user = machine.use(vf)
        try:
            answers = f"clear: {write(machine, _current(vf), '0')}, same again: {write(machine, _current(vf), number)}"
        finally:
            user.close()
        return f"{answers}; let go: {write(machine, _current(vf), '0')}"


@statement("vgpu.siblings-shrink", "One write shrinks the siblings' lists")
def shrink(machine: Machine) -> str:
    with _card(machine, 2) as [first, second]:
        before = _sizes(machine, second)
        _create(machine, first, _HALF)
        return f"before: {before}; after one 24Q: {_sizes(machine, second)}"


@statement("vgpu.one-size-per-card", "Without heterogeneous mode one framebuffer size per card")
def one_size(machine: Machine) -> str:
    with _card(machine, 2) as [first, second]:
        other = _listed(machine, second)["NVIDIA L40S-12Q"]
        _create(machine, first, _HALF)
        return f"12Q beside a 24Q: {write(machine, _current(second), other)}"


@statement("vgpu.full-card", "One write shrinks the siblings' lists")
def full(machine: Machine) -> str:
    with _card(machine, 3) as [first, second, third]:
        _create(machine, first, _HALF)
        _create(machine, second, _HALF)
        left = repr(text(machine, attribute(third, "nvidia/creatable_vgpu_types")))
        write(machine, _current(first), "0")
        return f"after two 24Q: {left}; after one was cleared: {_sizes(machine, third)}"


@statement("vgpu.whole-card", "One write shrinks the siblings' lists")
def whole(machine: Machine) -> str:
    with _card(machine, 2) as [first, second]:
        _create(machine, first, _WHOLE)
        return f"after one 48Q: {_sizes(machine, second)}"


@statement("vgpu.numvfs-is-not-carved", "`sriov_numvfs` ≠ number of carved vGPUs")
def not_carved(machine: Machine) -> str:
    with _new_card(machine, 3) as made:
        _create(machine, made[0], _HALF)
        carved = [vf for vf in made if text(machine, _current(vf)).strip() != "0"]
        return f"numvfs {count(machine, machine.roles['pf'])}, carved {len(carved)}"


@statement("vgpu.numvfs-zero-forgets", "PF re-enumeration reset numvfs **and** all types")
def numvfs_forgets(machine: Machine) -> str:
    with _new_card(machine, 1) as [vf]:
        _create(machine, vf, _HALF)
    with _new_card(machine, 1) as [again]:
        where = "same path" if vf == again else "another path"
        return f"{where}, reads {text(machine, _current(again))!r}, offers {_sizes(machine, again)}"


@statement("vgpu.path-is-reused", "same VF path is reused by later owners")
def path_reused(machine: Machine) -> str:
    with _new_card(machine, 2) as before:
        pass
    with _new_card(machine, 2) as after:
        return "the same paths" if before and before == after else "other paths"


@statement("vgpu.driver-reload-forgets", "driver reload/upgrade")
def reload_forgets(machine: Machine) -> str:
    with _card(machine, 2) as [vf, sibling]:
        _create(machine, vf, _HALF)
        unbind(machine, vf)
        without = f"nvidia/ {there(machine, attribute(vf, 'nvidia'))}, sibling offers {_sizes(machine, sibling)}"
        probe(machine, vf)
        return f"unbound: {without}; bound again: reads {text(machine, _current(vf))!r}"


@statement("vgpu.remove-and-rescan-forgets", "PF re-enumeration reset numvfs **and** all types")
def reenumeration(machine: Machine) -> str:
    pf = machine.roles["pf"]
    machine.load_vgpu()
    must(machine, attribute(pf, "sriov_drivers_autoprobe"), "0")
    must(machine, attribute(pf, "sriov_numvfs"), "1")
    [vf] = virtual_functions(machine, pf)
    give(machine, vf, _DRIVER)
    _create(machine, vf, _HALF)
    machine.remove(pf)
    machine.rescan()
    found = f"numvfs {count(machine, pf)}, autoprobe {text(machine, attribute(pf, 'sriov_drivers_autoprobe')).strip()}"
    return f"{found}, VF {there(machine, f'{DEVICES}/{vf}')}"


@statement("vgpu.types-need-the-driver", "driver loaded → (MIG) → VFs → (heterogeneous mode) → types")
def needs_driver(machine: Machine) -> str:
    machine.load_vgpu()
    with vfs(machine, 1) as [vf]:
        before = there(machine, attribute(vf, "nvidia"))
        set_override(machine, vf, _DRIVER)
        probe(machine, vf)
        return f"without the driver: {before}, with it: {there(machine, attribute(vf, 'nvidia'))}"


@statement("vgpu.handle-open", "VFIO handle open on the VF's group/cdev")
def handle_open(machine: Machine) -> str:
    with _card(machine, 1) as [vf]:
        _create(machine, vf, _HALF)
        node = group_node(machine, vf)
        user = machine.use(vf)
        try:
            names = {handle.comm for handle in read_open_handles(machine.host).by_path.get(node, ())}
        finally:
            user.close()
        left = read_open_handles(machine.host).by_path.get(node, ())
        return f"held by {' '.join(sorted(names))}, let go: {len(left)}"


@statement("vgpu.unbind-of-held-waits", "**Never on a PF with live vGPUs.**")
def unbind_held(machine: Machine) -> str:
    pf = machine.roles["pf"]
    with _new_card(machine, 1) as [vf]:
        _create(machine, vf, _HALF)
        user = machine.use(vf)
        with sleeping(machine, attribute(pf, "sriov_numvfs"), "0", user.close) as order:
            before = "asleep" if machine.asleep(order) else "not asleep"
            user.close()
            return f"numvfs 0: {before}, then {order.result()}"


@statement(
    "vgpu.vfio-pci-refused",
    "vfio-pci probe on it gives EINVAL",
    not_on_linux="vfio-pci refuses the vendor's functions; those of an emulated card it takes",
)
def vfio_pci_refused(machine: Machine) -> str:
    pf = machine.roles["few_pf"]
    load_vfio(machine)
    must(machine, attribute(pf, "sriov_drivers_autoprobe"), "0")
    must(machine, attribute(pf, "sriov_numvfs"), "1")
    try:
        [vf] = virtual_functions(machine, pf)
        set_override(machine, vf, VFIO)
        return f"{bind(machine, vf, VFIO)}, {driver(machine, vf)}"
    finally:
        must(machine, attribute(pf, "sriov_numvfs"), "0")
        must(machine, attribute(pf, "sriov_drivers_autoprobe"), "1")


def _carve(machine: Machine) -> Facts:
    """A type on the other card, which nothing else uses before the reboot."""
    card = machine.roles["other_pf"]
    machine.load_vgpu()
    if count(machine, card) == "0":
        must(machine, attribute(card, "sriov_numvfs"), "2")
    vf = virtual_functions(machine, card)[0]
    give(machine, vf, _DRIVER)
    return {"answer": _create(machine, vf, _HALF), "type": text(machine, _current(vf)).strip()}


@over_reboot("vgpu.reboot-forgets", "reset numvfs **and** all types", _carve)
def reboot_forgets(machine: Machine, before: Facts) -> str:
    card = machine.roles["other_pf"]
    vfs_after = count(machine, card)
    machine.load_vgpu()
    must(machine, attribute(card, "sriov_numvfs"), "2")
    try:
        vf = virtual_functions(machine, card)[0]
        give(machine, vf, _DRIVER)
        after = text(machine, _current(vf)).strip()
    finally:
        must(machine, attribute(card, "sriov_numvfs"), "0")
    return f"before: type {before['type']}; after: numvfs {vfs_after}, type {after}"


_VENDOR = "it is the vendor's program or card that does this, and nobody emulates it"
for _identifier, _phrase in (
    ("vgpu.manage-makes-none", "vGPU 17.2 can return 0 without VFs"),
    ("vgpu.manage-is-slow", "8 cards/160 VFs take >30 s"),
    ("vgpu.manage-lock", '"Cannot obtain unbindLock" is transient'),
    ("vgpu.manage-leaves-driverless", "failure may leave the PF driverless"),
    ("vgpu.heterogeneous-mode", "the mode is runtime state and must be set after `sriov-manage -e`"),
    ("vgpu.names-are-stable", "the numeric ids are not guaranteed"),
    ("vgpu.mig-needs-an-instance", "MIG-backed types need MIG mode + GPU instance first"),
    ("vgpu.mig-empties-the-list", "with MIG mode on, the time-sliced list is empty"),
    ("vgpu.mig-lost-at-reboot", "MIG mode itself is lost at reboot"),
    ("vgpu.vf-id-may-equal", "VF device id may equal the PF id"),
):
    unshown(_identifier, _phrase, _VENDOR)
