"""bind, unbind and drivers_probe: their errors and their effects, and the order that a careful writer keeps."""

from __future__ import annotations

from collections.abc import Callable

from node_host.pci.device import DRIVERS, DRIVERS_PROBE
from node_host.pci.vfio_drivers import read_aliases
from tests.contract.acts import (
    NOBODY,
    VFIO,
    attribute,
    bind,
    driver,
    give_to_vfio,
    group_node,
    kept,
    load_vfio,
    must,
    on_vfio,
    probe,
    set_override,
    sleeping,
    there,
    unbind,
    write,
)
from tests.contract.machine import Machine
from tests.contract.statement import statement

_EIO = 5
_EPROBE_DEFER = 517


@statement("order.override-unbind-probe", "set override → unbind (if bound) → write BDF to `drivers_probe`")
def careful_order(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card]:
        load_vfio(machine)
        answers = [write(machine, attribute(card, "driver_override"), VFIO)]
        answers.append(write(machine, attribute(card, "driver/unbind"), card))
        answers.append(probe(machine, card))
        return f"{' '.join(answers)}, {driver(machine, card)}"


@statement("order.override-unbind-bind", "(or drv/bind)")
def careful_order_by_bind(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card]:
        load_vfio(machine)
        set_override(machine, card, VFIO)
        unbind(machine, card)
        return f"{bind(machine, card, VFIO)}, {driver(machine, card)}"


@statement("order.module-first", "**re-read `driver` link**")
def module_missing(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card]:
        set_override(machine, card, "pds-vfio-pci")
        unbind(machine, card)
        return f"{probe(machine, card)}, {driver(machine, card)}"


@statement("order.return", "override cleared → unbind → drivers_probe → verify")
def way_back(machine: Machine) -> str:
    with on_vfio(machine, "other_pf") as card:
        answers = [write(machine, attribute(card, "driver_override"), "\n")]
        answers.append(write(machine, attribute(card, "driver/unbind"), card))
        answers.append(probe(machine, card))
        return f"{' '.join(answers)}, {driver(machine, card)}"


@statement("order.return-with-override-left", "leaving the override set blocks the native driver afterwards")
def way_back_with_override(machine: Machine) -> str:
    with on_vfio(machine, "other_pf") as card:
        unbind(machine, card)
        return f"{probe(machine, card)}, {driver(machine, card)}"


@statement("bind.no-such-device", "ENODEV when the device does not exist")
def bind_nobody(machine: Machine) -> str:
    load_vfio(machine)
    return bind(machine, NOBODY, VFIO)


@statement("bind.no-match", "bind without an override on a device whose id is not in vfio-pci's table")
def bind_unmatched(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card]:
        load_vfio(machine)
        unbind(machine, card)
        return f"{bind(machine, card, VFIO)}, {driver(machine, card)}"


@statement("bind.no-match-by-override", "the driver does not match it (override included)")
def bind_against_override(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card]:
        native = driver(machine, card)
        set_override(machine, card, VFIO)
        unbind(machine, card)
        return f"{bind(machine, card, native)}, {driver(machine, card)}"


@statement("bind.no-match-before-busy", "the driver does not match it (override included)")
def bind_bound_and_unmatched(machine: Machine) -> str:
    load_vfio(machine)
    card = machine.roles["other_pf"]
    return f"{bind(machine, card, VFIO)}, still on {driver(machine, card)}"


@statement("bind.already-bound", "EBUSY when it already has a driver")
def bind_bound(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card]:
        load_vfio(machine)
        set_override(machine, card, VFIO)
        return f"{bind(machine, card, VFIO)}, still on {driver(machine, card)}"


@statement("bind.already-bound-to-it", "EBUSY when it already has a driver")
def bind_again(machine: Machine) -> str:
    card = machine.roles["other_pf"]
    return f"{bind(machine, card, driver(machine, card))}, still on {driver(machine, card)}"


@statement("bind.probe-error", "the probe's own error otherwise")
def bind_failing(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin], machine.failing_probe(_EIO) as name:
        set_override(machine, twin, name)
        return f"{bind(machine, twin, name)}, {driver(machine, twin)}"


@statement("bind.deferred-shows-as-eagain", "EPROBE_DEFER shows as EAGAIN")
def bind_deferring(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin], machine.failing_probe(_EPROBE_DEFER) as name:
        set_override(machine, twin, name)
        return f"{bind(machine, twin, name)}, {driver(machine, twin)}"


@statement("vfio.bridge-refused", "the probe's own error otherwise")
def bind_bridge(machine: Machine) -> str:
    with kept(machine, "empty_port") as [port]:
        load_vfio(machine)
        set_override(machine, port, VFIO)
        unbind(machine, port)
        return f"{bind(machine, port, VFIO)}, {driver(machine, port)}"


@statement("bind.succeeds", "return the byte count on success")
def bind_succeeds(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin]:
        load_vfio(machine)
        set_override(machine, twin, VFIO)
        answers = bind(machine, twin, VFIO), driver(machine, twin)
        listed = there(machine, f"{DRIVERS}/{VFIO}/{twin}")
        return f"{answers[0]}, {answers[1]}, {listed} among the driver's devices"


@statement("bind.name-forms", "ENODEV when the device does not exist")
def bind_newline(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin]:
        load_vfio(machine)
        set_override(machine, twin, VFIO)
        answers = []
        for data in (f"{twin}\n", f" {twin}", f"{twin}\n\n", twin.upper() if twin.upper() != twin else f"{twin}0"):
            answers.append(write(machine, f"{DRIVERS}/{VFIO}/bind", data))
            unbind(machine, twin)
        return (
            f"newline: {answers[0]}, blank before: {answers[1]}, two newlines: {answers[2]}, other name: {answers[3]}"
        )


@statement("unbind.not-bound-to-driver", "ENODEV when not bound to that driver")
def unbind_from_other(machine: Machine) -> str:
    load_vfio(machine)
    card = machine.roles["other_pf"]
    return f"{write(machine, f'{DRIVERS}/{VFIO}/unbind', card)}, still on {driver(machine, card)}"


@statement("unbind.driverless", "ENODEV when not bound to that driver")
def unbind_driverless(machine: Machine) -> str:
    load_vfio(machine)
    return write(machine, f"{DRIVERS}/{VFIO}/unbind", machine.roles["twin_a"])


@statement("unbind.no-such-device", "ENODEV when not bound to that driver")
def unbind_nobody(machine: Machine) -> str:
    load_vfio(machine)
    return write(machine, f"{DRIVERS}/{VFIO}/unbind", NOBODY)


@statement("unbind.succeeds", "return the byte count on success")
def unbind_succeeds(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card]:
        native = driver(machine, card)
        answer = write(machine, f"{DRIVERS}/{native}/unbind", card)
        return f"{answer}, {driver(machine, card)}"


@statement("unbind.override-stays", "leaving the override set blocks the native driver afterwards")
def unbind_keeps_override(machine: Machine) -> str:
    with on_vfio(machine, "twin_a") as twin:
        unbind(machine, twin)
        left = machine.host.read(attribute(twin, "driver_override")).decode().strip()
        return f"{driver(machine, twin)}, override {left}"


@statement("unbind.waits-for-vfio-user", "blocks until the user lets go")
def unbind_waits(machine: Machine) -> str:
    with on_vfio(machine, "twin_a") as twin:
        user = machine.use(twin)
        with sleeping(machine, attribute(twin, "driver/unbind"), twin, user.close) as order:
            before = "asleep" if machine.asleep(order) else "not asleep"
            user.close()
            return f"{before}, then {order.result()}, {driver(machine, twin)}"


@statement("unbind.asks-the-user", "(a request is sent to it)")
def unbind_asks(machine: Machine) -> str:
    with on_vfio(machine, "twin_a") as twin:
        user = machine.use(twin)
        with sleeping(machine, attribute(twin, "driver/unbind"), twin, user.close):
            return "asked" if user.requested() else "not asked"


def _meanwhile(machine: Machine, what: str, write_to: Callable[[str], tuple[str, str]]) -> str:
    """What another write about the device does while an unbind waits for a user; path and data from its address."""
    with on_vfio(machine, "twin_a") as twin:
        user = machine.use(twin)
        with sleeping(machine, attribute(twin, "driver/unbind"), twin, user.close) as first:
            if not machine.asleep(first):
                return "unbind does not wait"
            with sleeping(machine, *write_to(twin), user.close) as second:
                if machine.asleep(second):
                    return f"{what} meanwhile: asleep"
                return f"{what} meanwhile: {second.result()}"


@statement("device.one-operation-at-a-time", "unbind can block for minutes while a process holds the device")
def bind_meanwhile(machine: Machine) -> str:
    return _meanwhile(machine, "bind", lambda twin: (f"{DRIVERS}/{VFIO}/bind", twin))


@statement("probe.leaves-leaving-device", "unbind can block for minutes while a process holds the device")
def probe_meanwhile(machine: Machine) -> str:
    return _meanwhile(machine, "drivers_probe", lambda twin: (DRIVERS_PROBE, twin))


@statement("override.set-while-unbind-waits", "unbind can block for minutes while a process holds the device")
def override_meanwhile(machine: Machine) -> str:
    return _meanwhile(machine, "driver_override", lambda twin: (attribute(twin, "driver_override"), "\n"))


@statement("unbind.others-go-on", "do it with a time limit in a child")
def others_go_on(machine: Machine) -> str:
    with on_vfio(machine, "twin_a") as twin, kept(machine, "twin_b") as [other]:
        user = machine.use(twin)
        with sleeping(machine, attribute(twin, "driver/unbind"), twin, user.close) as order:
            if not machine.asleep(order):
                return "unbind does not wait"
            give_to_vfio(machine, other)
            return f"another device meanwhile: {driver(machine, other)}; this one reads: {driver(machine, twin)}"


@statement("probe.no-such-device", "`drivers_probe`: ENODEV for an unknown device")
def probe_nobody(machine: Machine) -> str:
    return probe(machine, NOBODY)


@statement("probe.success-even-if-unclaimed", "success even when no driver took it")
def probe_unclaimed(machine: Machine) -> str:
    twin = machine.roles["twin_a"]
    return f"{probe(machine, twin)}, {driver(machine, twin)}"


@statement("probe.success-even-if-probe-failed", "success even when no driver took it")
def probe_failed(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin], machine.failing_probe(_EIO) as name:
        set_override(machine, twin, name)
        return f"{probe(machine, twin)}, {driver(machine, twin)}"


@statement("probe.leaves-bound-device", "ask the core to match a driverless device")
def probe_bound(machine: Machine) -> str:
    with kept(machine, "other_pf") as [card]:
        load_vfio(machine)
        set_override(machine, card, VFIO)
        return f"{probe(machine, card)}, still on {driver(machine, card)}"


@statement("module.directory-of-vfio-pci", "`vfio_pci` module → `vfio-pci` directory")
def directory_of_vfio_pci(machine: Machine) -> str:
    load_vfio(machine)
    module = machine.host.read_link(f"{DRIVERS}/{VFIO}/module").rpartition("/")[2]
    return f"vfio-pci of {module}; vfio_pci {there(machine, f'{DRIVERS}/vfio_pci')}"


@statement("module.directory-of-a-variant", "some variants keep underscores")
def directory_of_variant(machine: Machine) -> str:
    machine.host.load_module("sim_variant_vfio_pci")
    return " ".join(name for name in machine.host.list(DRIVERS) if name.replace("-", "_") == "sim_variant_vfio_pci")


@statement("module.absent", "check module")
def no_such_module(machine: Machine) -> str:
    try:
        machine.host.load_module("no_such_vfio_pci")
    except FileNotFoundError:
        return "not found"
    return "loaded"


@statement("match.override-only-ids", "they bind only through driver_override")
def override_only(machine: Machine) -> str:
    name = directory_of_variant(machine)
    card = machine.plug("variant")
    try:
        unbind(machine, card)
        without = f"{bind(machine, card, name)}, {driver(machine, card)}"
        set_override(machine, card, name)
        return f"without: {without}; with: {bind(machine, card, name)}, {driver(machine, card)}"
    finally:
        unbind(machine, card)
        machine.unplug(card)


@statement("match.variant-by-modalias", "choose by modalias")
def variant_by_modalias(machine: Machine) -> str:
    aliases = read_aliases(machine.host)
    card = machine.plug("variant")
    try:
        modalias = machine.host.read(attribute(card, "modalias")).decode().strip()
    finally:
        machine.unplug(card)
    twin = machine.host.read(attribute(machine.roles["twin_a"], "modalias")).decode().strip()
    return f"variant: {aliases.module_for(modalias)}; a device without one: {aliases.module_for(twin)}"


@statement("vfio.group-node", "verify `/dev/vfio/<group>`")
def group_node_comes_and_goes(machine: Machine) -> str:
    with kept(machine, "twin_a") as [twin]:
        node = group_node(machine, twin)
        seen = [there(machine, node)]
        give_to_vfio(machine, twin)
        seen.append(there(machine, node))
        must(machine, attribute(twin, "driver_override"), "\n")
        unbind(machine, twin)
        seen.append(there(machine, node))
        return f"before: {seen[0]}, bound: {seen[1]}, after: {seen[2]}"
