"""driver_override: what writing it does, and what it does not."""

from __future__ import annotations

from node_host.pci.device import DRIVERS_PROBE
from tests.contract.acts import (
    VFIO,
    attribute,
    driver,
    kept,
    load_vfio,
    must,
    on_vfio,
    override,
    probe,
    set_override,
    text,
    there,
    unbind,
    write,
)
from tests.contract.machine import Machine
from tests.contract.statement import statement

_PAGE = 4096
_NEVER_LOADED = "pds_vfio_pci"


@statement("override.rebinds-nothing", "neither unbinds nor loads a module")
def rebinds_nothing(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card]:
        load_vfio(machine)
        set_override(machine, card, VFIO)
        return f"still on {driver(machine, card)}"


@statement("override.loads-no-module", "neither unbinds nor loads a module")
def loads_no_module(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin]:
        set_override(machine, twin, _NEVER_LOADED)
        answer = probe(machine, twin)
        return f"{answer}, module {there(machine, f'/sys/module/{_NEVER_LOADED}')}, {driver(machine, twin)}"


@statement("override.reads-null", "reads `(null)` when unset")
def reads_null(machine: Machine) -> str:
    return repr(text(machine, attribute(machine.roles["twin_a"], "driver_override")))


@statement("override.set", "set override")
def reads_back(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin]:
        answers = []
        for data in (b"vfio-pci", b"vfio-pci\n", b"vfio-pci\nrest", b"vfio-pci\0rest"):
            must(machine, attribute(twin, "driver_override"), data)
            answers.append(repr(text(machine, attribute(twin, "driver_override"))))
        return " ".join(answers)


@statement("override.newline-clears", "clear it with a newline (or NUL)")
def newline_clears(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin]:
        set_override(machine, twin, VFIO)
        answer = write(machine, attribute(twin, "driver_override"), "\n")
        return f"{answer}, {override(machine, twin)}"


@statement("override.nul-clears", "clear it with a newline (or NUL)")
def nul_clears(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin]:
        set_override(machine, twin, VFIO)
        answer = write(machine, attribute(twin, "driver_override"), b"\0")
        return f"{answer}, {override(machine, twin)}"


@statement("write.empty-does-nothing", "zero-length write never reaches the kernel")
def empty_write(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin]:
        set_override(machine, twin, VFIO)
        answer = write(machine, attribute(twin, "driver_override"), b"")
        return f"{answer}, {override(machine, twin)}"


@statement("override.too-long", "≥ PAGE_SIZE−1 bytes: EINVAL")  # noqa: RUF001
def too_long(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin]:
        place = attribute(twin, "driver_override")
        lengths = (_PAGE - 2, _PAGE - 1, _PAGE)
        return ", ".join(f"{length}: {write(machine, place, b'x' * length)}" for length in lengths)


@statement("override.unmatched-name", 'matches nothing (e.g. "none") keeps a device driverless')
def unmatched_name(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card]:
        set_override(machine, card, "none")
        unbind(machine, card)
        return f"{probe(machine, card)}, {driver(machine, card)}"


@statement("match.override-excludes-other-drivers", "leaving the override set blocks the native driver afterwards")
def left_override_blocks(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card]:
        native = driver(machine, card)
        set_override(machine, card, "none")
        unbind(machine, card)
        answers = [write(machine, f"/sys/bus/pci/drivers/{native}/bind", card), driver(machine, card)]
        set_override(machine, card, "")
        answers += [write(machine, f"/sys/bus/pci/drivers/{native}/bind", card), driver(machine, card)]
        return f"set: {answers[0]}, {answers[1]}; cleared: {answers[2]}, {answers[3]}"


@statement("override.clearing-keeps-the-driver", "keep or clear override")
def clearing_keeps_driver(machine: Machine) -> str:
    with on_vfio(machine, "other_pf") as card:
        answer = write(machine, attribute(card, "driver_override"), "\n")
        return f"{answer}, still on {driver(machine, card)}"


@statement("write.empty-to-drivers-probe", "A zero-byte write may be ignored")
def empty_probe(machine: Machine) -> str:
    return write(machine, DRIVERS_PROBE, b"")
