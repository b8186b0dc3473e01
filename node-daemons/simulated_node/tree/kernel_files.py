"""What the kernel says of itself: modules, boot id, command line."""

from functools import partial

from simulated_node.description import DriverKind, Iommu, ModuleState
from simulated_node.model import reload, vfio
from simulated_node.model.matching import alias_pattern
from simulated_node.model.state import Machine
from simulated_node.tree.entries import Memory, TreeBuilder


def render_kernel(out: TreeBuilder, machine: Machine, memory: Memory) -> None:
    memory.add(out, "kernel", None, partial(_render_facts, machine=machine))
    loaded = tuple((module.name, module.description.release) for module in machine.modules.values() if module.loaded)
    memory.add(out, "modules", loaded, partial(_render_modules, machine=machine))
    listed = tuple(
        (f"{driver.description.listing}/{device.address}", device.address, device.nodes[0].minor)
        for driver in machine.drivers.values()
        if driver.description.listing is not None
        for device in machine.devices.values()
        if device.driver == driver.name and not vfio.is_on_vfio(machine, device)
    )
    memory.add(out, "listings", listed, partial(_render_listings, listed=listed))


def _render_facts(out: TreeBuilder, machine: Machine) -> None:
    """What stays as it is while the machine is on."""
    kernel = machine.description.kernel
    out.file("/proc/sys/kernel/random/boot_id", machine.boot_id)
    out.file("/proc/sys/kernel/osrelease", kernel.release)
    out.file("/proc/cmdline", kernel.command_line)
    library = f"/lib/modules/{kernel.release}"
    out.file(f"{library}/modules.alias", _aliases(machine), 0o644)
    states = {module.name: module.description.state for module in machine.modules.values()}
    builtin = [name for name, state in states.items() if state is ModuleState.BUILTIN]
    files = [name for name, state in states.items() if state not in (ModuleState.BUILTIN, ModuleState.ABSENT)]
    out.file(f"{library}/modules.builtin", "".join(f"kernel/drivers/{name}.ko\n" for name in builtin), 0o644)
    out.file(f"{library}/modules.dep", "".join(f"kernel/drivers/{name}.ko:\n" for name in files), 0o644)


def _render_modules(out: TreeBuilder, machine: Machine) -> None:
    out.directory("/sys/module")
    for module in machine.modules.values():
        here = f"/sys/module/{module.name}"
        if not module.loaded:
            continue
        out.directory(here)
        if module.description.state is not ModuleState.BUILTIN:
            users = [
                other.name
                for other in machine.modules.values()
                if other.loaded and module.name in other.description.requires
            ]
            out.file(f"{here}/initstate", "live")
            out.file(f"{here}/refcnt", str(len(users)))
            for user in users:
                out.link(f"{here}/holders/{user}", f"/sys/module/{user}")
        if module.description.release is not None:
            reload.RELEASE.fires()
            out.file(f"{here}/version", module.description.release)
        if module.description.ids:
            out.file(f"{here}/parameters/ids", ",".join(module.description.ids))
        if module.name == "vfio":
            unsafe = "Y" if machine.description.kernel.iommu is Iommu.UNSAFE_NO_IOMMU else "N"
            out.file(f"{here}/parameters/enable_unsafe_noiommu_mode", unsafe)


def _aliases(machine: Machine) -> str:
    """modules.alias, as depmod writes it: the file is on disk whether or not a module is loaded."""
    lines = ["# Aliases extracted from modules themselves."]
    for driver in machine.available_drivers.values():
        module = machine.modules.get(driver.module)
        if module is None or module.description.state in (ModuleState.ABSENT, ModuleState.BUILTIN):
            continue
        lines += [f"alias pci:{alias_pattern(row)} {driver.module}" for row in driver.ids]
        lines += [f"alias vfio_pci:{alias_pattern(row)} {driver.module}" for row in driver.override_only_ids]
        if driver.kind is DriverKind.VFIO and not driver.override_only_ids:
            lines.append(f"alias vfio_pci:v*d*sv*sd*bc*sc*i* {driver.module}")
    return "\n".join(lines)


def _render_listings(out: TreeBuilder, listed: tuple[tuple[str, str, str], ...]) -> None:
    """A driver's own list of its devices in /proc, as nvidia's: it has no class device that names the node."""
    for path, address, minor in listed:
        out.file(f"{path}/information", f"Bus Location: \t {address}\nDevice Minor: \t {minor}")
