"""The machine that the guest sees, as a QEMU command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.kernel.lab.roles import BUS_WITHOUT_IOMMU, PORTS, ROLES, SLOT_OF_ONE_MORE, WITHOUT_ACS

PROGRAM = "qemu-system-x86_64"


@dataclass(frozen=True, slots=True)
class Machine:
    """One boot. `accelerator`: "kvm" or "tcg". The serial line goes to the file `serial`, and with `interactive` to the
    terminal as well. `monitor`: an open socket that QEMU inherits and speaks QMP on."""

    kernel: Path
    initramfs: Path
    share: Path
    disk: Path
    python: Path
    serial: Path
    accelerator: str
    monitor: int | None = None
    interactive: bool = False
    memory_mib: int = 3072
    processors: int = 2
    append: str = ""
    # A card in a slot before the others, as somebody may put one in: bus and IOMMU group numbers move.
    one_more_card: bool = False


def qemu_arguments(machine: Machine, program: str = PROGRAM) -> list[str]:
    """The whole command; commas in paths are doubled, as QEMU's option syntax wants them."""
    return [
        program,
        *("-name", "npufleet-kernel-lab"),
        *("-machine", "q35,kernel-irqchip=split"),
        *_accelerator(machine.accelerator),
        *("-smp", str(machine.processors), "-m", f"{machine.memory_mib}M"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-monitor", "none"),
        *_console(machine),
        *_monitor(machine.monitor),
        *("-kernel", str(machine.kernel), "-initrd", str(machine.initramfs)),
        *("-append", kernel_command_line(machine)),
        *_directory("root9p", Path("/"), 0x05, read_only=True),
        *_directory("share9p", machine.share, 0x06, read_only=False),
        *(one_more_card() if machine.one_more_card else ()),
        *("-drive", f"file={_quoted(machine.python)},if=none,id=python_file,format=raw,readonly=on"),
        *("-device", "virtio-blk-pci,drive=python_file,bus=pcie.0,addr=0x10"),
        *devices(machine.disk),
    ]


def kernel_command_line(machine: Machine) -> str:
    fixed = "console=ttyS0 quiet panic=-1 oops=panic intel_iommu=on mitigations=off nokaslr random.trust_cpu=on"
    # A busy host delays the timer beyond what the kernel's check of it waits for.
    fixed += " no_timer_check"
    if machine.accelerator == "tcg":
        # A timer that is set anew at each interrupt is dead for good once an interrupt is lost, as happens to emulated
        # processors on a busy host; a periodic one goes on.
        fixed += " nohz=off highres=off"
    return f"{fixed} {machine.append}".strip()


def devices(disk: Path) -> list[str]:
    """The devices of all roles, and the ports and bridges that carry them."""
    arguments = ["-device", "intel-iommu,intremap=on"]
    for chassis, (slot, port) in enumerate(PORTS.items(), start=1):
        access_control = ",disable-acs=on" if port in WITHOUT_ACS else ""
        place = f"bus=pcie.0,addr={slot:#x},chassis={chassis},slot={chassis}"
        arguments += ["-device", f"pcie-root-port,id={port},{place}{access_control}"]
    arguments += ["-device", f"pcie-pci-bridge,id=shared_bridge,bus={PORTS[ROLES['shared_bridge'].slot]},addr=0"]
    bus = f"pxb-pcie,id=bus_without_iommu,bus=pcie.0,addr=0xe,bus_nr={BUS_WITHOUT_IOMMU},bypass_iommu=on"
    arguments += ["-device", bus]
    arguments += ["-device", "pcie-root-port,id=port_without_iommu,bus=bus_without_iommu,addr=0,chassis=40,slot=40"]
    arguments += ["-netdev", "user,id=uplink,restrict=on"]
    arguments += ["-drive", f"file={_quoted(disk)},if=none,id=disk_file,format=raw,cache=writeback"]
    models = {
        "display": "VGA",
        "twin_a": "edu",
        "twin_b": "edu",
        # Conventional PCI: the kernel knows of e1000e and igb that their functions are isolated from each other.
        "route_nic": "e1000-82545em,netdev=uplink,multifunction=on,romfile=",
        "beside_route": "edu",
        "pf": "igb,romfile=,mac=52:54:00:6c:61:01",
        "other_pf": "igb,romfile=,mac=52:54:00:6c:61:02",
        "shared_a": "e1000,romfile=,mac=52:54:00:6c:61:03",
        "shared_b": "e1000,romfile=,mac=52:54:00:6c:61:04",
        "below_port": "e1000e,romfile=,mac=52:54:00:6c:61:05",
        "no_group": "edu",
        "disk": "nvme,drive=disk_file,serial=kernel-lab",
    }
    for name, model in models.items():
        arguments += ["-device", f"{model},id={name},{_place(name)}"]
    return arguments


def one_more_card() -> list[str]:
    port = f"pcie-root-port,id=port_more,bus=pcie.0,addr={SLOT_OF_ONE_MORE:#x},chassis=32,slot=32"
    return ["-device", port, "-device", "edu,id=one_more,bus=port_more,addr=0"]


def _place(name: str) -> str:
    role = ROLES[name]
    if role.bus == BUS_WITHOUT_IOMMU:
        return "bus=port_without_iommu,addr=0"
    if role.bridge:
        device, function = role.below or (0, 0)
        return f"bus=shared_bridge,addr={device:#x}.{function}"
    if role.below is not None:
        return f"bus={PORTS[role.slot]},addr=0"
    return f"bus=pcie.0,addr={role.slot:#x}.{role.function}"


def _accelerator(name: str) -> list[str]:
    return ["-accel", "kvm", "-cpu", "host"] if name == "kvm" else ["-accel", "tcg,thread=multi", "-cpu", "max"]


def _console(machine: Machine) -> list[str]:
    if machine.interactive:
        return [
            "-chardev",
            f"stdio,id=console,signal=off,logfile={_quoted(machine.serial)}",
            "-serial",
            "chardev:console",
        ]
    return ["-chardev", f"file,id=console,path={_quoted(machine.serial)}", "-serial", "chardev:console"]


def _monitor(descriptor: int | None) -> list[str]:
    if descriptor is None:
        return []
    return ["-chardev", f"socket,id=qmp,fd={descriptor}", "-mon", "chardev=qmp,mode=control"]


def _directory(tag: str, path: Path, slot: int, *, read_only: bool) -> list[str]:
    options = f"local,id={tag},path={_quoted(path)},security_model=none,multidevs=remap"
    return [
        *("-fsdev", options + (",readonly=on" if read_only else "")),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag},bus=pcie.0,addr={slot:#x}"),
    ]


def _quoted(path: Path) -> str:
    return str(path).replace(",", ",,")
