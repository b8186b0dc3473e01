"""What keeps the GPUs of a host from their purpose, and the exact command that mends each. Pure; nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from cli.devices.doctor_facts import HostSoftware

LABEL: Final = "nvidia.com/gpu.deploy.driver"
PRE_INSTALLED: Final = "pre-installed"
KEPT_AWAY: Final = ("nouveau", "nvidia", "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia_peermem")
_REBUILD: Final = "sudo update-initramfs -u -k all"
_FILE: Final = "/etc/modprobe.d/blacklist-nvidia.conf"


class Purpose(StrEnum):
    """What the GPUs are for: whole to VMs, or cut into vGPUs by the vendor's host driver."""

    PASSTHROUGH = "passthrough"
    VGPU = "vgpu"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is in the way: `what`, why it matters, and the commands that mend it, in their order."""

    name: str
    what: str
    why: str
    fix: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a device: its number, name and the systemd service that it is of, None without one."""

    device: str
    pid: int | None
    name: str
    detail: str
    service: str | None


def findings(
    software: HostSoftware,
    holders: Sequence[Holder],
    *,
    purpose: Purpose,
    node: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> list[Finding]:
    """What was found, the causes before what follows from them. `labels` None: the Node was not asked."""
    found = [*_label(node, labels)]
    found += _host_driver(software) if purpose is Purpose.PASSTHROUGH else _for_vgpus(software)
    found += [_held(holder) for holder in holders]
    return found


def _host_driver(software: HostSoftware) -> Iterator[Finding]:
    """What the vendor's tools take for a driver of the host, and what brings it back after it was taken away."""
    loaded = sorted(name for name in software.modules if name in KEPT_AWAY or name.startswith("nvidia"))
    if software.packages:
        yield Finding(
            "packages",
            f"installed: {', '.join(software.packages)}",
            "NVIDIA's driver manager finds nvidia-smi and leaves every card to the host driver",
            (f"sudo apt purge {' '.join(software.packages)}", _REBUILD, "sudo reboot"),
        )
    elif software.programs:
        where = ", ".join(sorted(software.programs.values()))
        yield Finding(
            "run-installer",
            f"{where} without a package: the driver came by the .run installer",
            "NVIDIA's driver manager finds nvidia-smi and leaves every card to the host driver",
            ("sudo nvidia-uninstall", _REBUILD, "sudo reboot"),
        )
    if software.dkms:
        yield Finding(
            "dkms",
            f"/var/lib/dkms has {', '.join(software.dkms)}",
            "the next kernel update builds nvidia.ko again, and an explicit modprobe passes the blacklist",
            ("dkms status | grep -i nvidia", *(f"sudo dkms remove {name} --all" for name in software.dkms)),
        )
    if loaded:
        yield Finding(
            "modules",
            f"loaded: {', '.join(loaded)}",
            "they take each card at boot before anybody else; npufleet takes ordered cards from them one by one",
            ("sudo reboot   # after the packages are gone and the blacklist is there",),
        )
    missing = [name for name in KEPT_AWAY if name not in software.blacklisted]
    if missing and (loaded or software.packages or software.dkms or software.programs):
        lines = "\\n".join(f"blacklist {name}" for name in KEPT_AWAY)
        yield Finding(
            "blacklist",
            f"no file of /etc/modprobe.d keeps away: {', '.join(missing)}",
            "the modules come back at the next boot",
            (f"printf '{lines}\\n' | sudo tee {_FILE}", _REBUILD),
        )
    yield from _old_images(software)


def _old_images(software: HostSoftware) -> Iterator[Finding]:
    changed = software.blacklist_changed
    old = sorted(name for name, built in software.images.items() if changed is not None and built < changed)
    if old:
        yield Finding(
            "initramfs",
            f"older than the blacklist: {', '.join(old)}",
            "the kernel boots with what the initramfs holds, so the blacklist does not count yet",
            (_REBUILD,),
        )


def _for_vgpus(software: HostSoftware) -> Iterator[Finding]:
    kept = sorted(software.blacklisted & {"nvidia"})
    if kept:
        yield Finding(
            "blacklist",
            "/etc/modprobe.d keeps nvidia away",
            "vGPUs are made by the vendor's host driver, which cannot load then",
            ("grep -l nvidia /etc/modprobe.d/*.conf", "sudo rm FILE", _REBUILD, "sudo reboot"),
        )
    if "nouveau" in software.modules:
        yield Finding(
            "modules",
            "loaded: nouveau",
            "it holds the cards that the vendor's host driver is to have",
            (f"echo 'blacklist nouveau' | sudo tee {_FILE.replace('nvidia', 'nouveau')}", _REBUILD, "sudo reboot"),
        )
    if "nvidia" not in software.modules:
        yield Finding(
            "modules",
            "module nvidia is not loaded",
            "vGPUs are made by the vendor's vGPU host driver",
            ("sudo modprobe nvidia   # once the vGPU host package of the vendor is installed",),
        )


def _label(node: str | None, labels: Mapping[str, str] | None) -> Iterator[Finding]:
    if labels is not None and labels.get(LABEL) == PRE_INSTALLED:
        yield Finding(
            "label",
            f"Node {node} has the label {LABEL}={PRE_INSTALLED}",
            "NVIDIA's driver manager put it there and never takes it back: it keeps the driver's pods away",
            (f"kubectl label node {node} {LABEL}-",),
        )


def _held(holder: Holder) -> Finding:
    who = f"{holder.name} (pid {holder.pid})" if holder.pid is not None else holder.name
    fix = (f"sudo systemctl stop {holder.service}",) if holder.service else ()
    if not fix and holder.pid is not None:
        fix = (f"ps -f -p {holder.pid}   # who it is, before anybody ends it: it may be a VM",)
    of = f" of {holder.service}" if holder.service else ""
    return Finding(
        "held", f"{holder.device}: {who}{of} has it: {holder.detail}", "npufleet changes no device in use", fix
    )
