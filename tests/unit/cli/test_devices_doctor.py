"""`npufleet devices doctor`: what it finds on a host, the fix that it prints, and what it leaves alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.devices.doctor import Finding, Holder, Purpose, findings
from cli.devices.doctor_facts import HostSoftware, read_software, service_of
from cli.main import main
from node_host.host import KernelFiles
from simulated_node.description_files import load_description
from simulated_node.kernel import SimulatedKernel
from simulated_node.server import SimulatedKernelServer

STATUS = """Package: nvidia-driver-580-open
Status: install ok installed
Description: NVIDIA driver

Package: nvidia-dkms-580-open
Status: install ok installed

Package: libnvidia-ml-dev
Status: deinstall ok config-files

Package: libnvidia-doca-net
Status: install ok installed
Description: DOCA runtime for Mellanox cards

Package: bash
Status: install ok installed
"""
BLACKLIST = """blacklist nouveau
blacklist nvidia
blacklist nvidia-drm
blacklist nvidia_modeset
install nvidia_uvm /bin/false
"""


def put(root: Path, path: str, text: str = "", *, changed: float | None = None) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    if changed is not None:
        os.utime(place, (changed, changed))


def software(root: Path) -> HostSoftware:
    return read_software(KernelFiles(root))


def names(found: list[Finding]) -> list[str]:
    return [one.name for one in found]


def of(facts: HostSoftware, purpose: Purpose = Purpose.PASSTHROUGH) -> list[Finding]:
    return findings(facts, [], purpose=purpose)


def fix(found: list[Finding], name: str) -> tuple[str, ...]:
    return next(one.fix for one in found if one.name == name)


def test_clean_host_has_no_findings(tmp_path: Path) -> None:
    assert of(software(tmp_path)) == []


def test_installed_packages_are_purged_by_name_and_those_of_network_cards_are_not(tmp_path: Path) -> None:
    put(tmp_path, "/var/lib/dpkg/status", STATUS)
    facts = software(tmp_path)
    assert facts.packages == ("nvidia-dkms-580-open", "nvidia-driver-580-open")
    assert facts.of_network == ("libnvidia-doca-net",)
    purge = fix(of(facts), "packages")[0]
    assert purge == "sudo apt purge nvidia-dkms-580-open nvidia-driver-580-open"
    assert "*" not in purge and "autoremove" not in purge


def test_driver_of_the_run_installer_is_told_from_packages(tmp_path: Path) -> None:
    put(tmp_path, "/usr/local/bin/nvidia-smi")
    found = of(software(tmp_path))
    assert names(found) == ["run-installer", "blacklist"]
    assert fix(found, "run-installer")[0] == "sudo nvidia-uninstall"
    put(tmp_path, "/var/lib/dpkg/status", STATUS)
    assert "run-installer" not in names(of(software(tmp_path)))


def test_loaded_modules_and_leftovers_of_dkms_are_found(tmp_path: Path) -> None:
    put(tmp_path, "/proc/modules", "nvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 nvidia_uvm, Live 0x0\next4 3 0 - Live 0x0\n")
    put(tmp_path, "/var/lib/dkms/nvidia/580.82.07/source/Kbuild")
    found = of(software(tmp_path))
    assert names(found) == ["dkms", "modules", "blacklist"]
    assert "nvidia, nvidia_uvm" in next(one.what for one in found if one.name == "modules")
    assert "sudo dkms remove nvidia --all" in fix(found, "dkms")


def test_blacklist_that_lacks_a_module_is_named_with_the_module(tmp_path: Path) -> None:
    put(tmp_path, "/proc/modules", "nvidia 2 1 - Live 0x0\n")
    put(tmp_path, "/etc/modprobe.d/blacklist-nvidia.conf", BLACKLIST)
    put(tmp_path, "/etc/modprobe.d/nvidia_peermem.txt", "blacklist nvidia_peermem\n")
    facts = software(tmp_path)
    assert facts.blacklisted == {"nouveau", "nvidia", "nvidia_drm", "nvidia_modeset", "nvidia_uvm"}
    what = next(one.what for one in of(facts) if one.name == "blacklist")
    assert what.endswith("keeps away: nvidia_peermem")


def test_initramfs_of_any_kernel_that_is_older_than_the_blacklist_is_found(tmp_path: Path) -> None:
    put(tmp_path, "/etc/modprobe.d/blacklist-nvidia.conf", BLACKLIST, changed=2000.0)
    put(tmp_path, "/boot/initrd.img-6.8.0-60-generic", changed=3000.0)
    put(tmp_path, "/boot/initrd.img-6.8.0-31-generic", changed=1000.0)
    put(tmp_path, "/boot/vmlinuz-6.8.0-31-generic", changed=1000.0)
    found = of(software(tmp_path))
    assert names(found) == ["initramfs"]
    assert found[0].what == "older than the blacklist: initrd.img-6.8.0-31-generic"
    assert found[0].fix == ("sudo update-initramfs -u -k all",)


def test_label_that_stays_behind_is_found_with_the_command_that_clears_it() -> None:
    labels = {"nvidia.com/gpu.deploy.driver": "pre-installed"}
    found = findings(HostSoftware(), [], purpose=Purpose.PASSTHROUGH, node="worker-1", labels=labels)
    assert found[0].fix == ("kubectl label node worker-1 nvidia.com/gpu.deploy.driver-",)
    assert findings(HostSoftware(), [], purpose=Purpose.PASSTHROUGH, node="worker-1", labels={}) == []


def test_for_vgpus_the_host_driver_has_to_stay() -> None:
    good = HostSoftware(modules=frozenset({"nvidia"}), packages=("nvidia-vgpu-kvm",))
    assert of(good, Purpose.VGPU) == []
    kept_away = HostSoftware(blacklisted=frozenset({"nvidia"}), modules=frozenset({"nouveau"}))
    assert names(of(kept_away, Purpose.VGPU)) == ["blacklist", "modules", "modules"]


def test_process_that_has_a_card_is_named_with_its_service(tmp_path: Path) -> None:
    put(tmp_path, "/proc/812/cgroup", "0::/system.slice/nvidia-persistenced.service\n")
    put(tmp_path, "/proc/900/cgroup", "0::/user.slice\n")
    host = KernelFiles(tmp_path)
    assert service_of(host, 812) == "nvidia-persistenced.service"
    assert service_of(host, 900) is None
    assert service_of(host, 7) is None
    holder = Holder(
        "0000:21:00.0", 812, "nvidia-persiste", "pid 812 has /dev/nvidia0 open", "nvidia-persistenced.service"
    )
    [found] = findings(HostSoftware(), [holder], purpose=Purpose.PASSTHROUGH)
    assert found.fix == ("sudo systemctl stop nvidia-persistenced.service",)
    assert "0000:21:00.0" in found.what


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    put(tmp_path, "/etc/modprobe.d", "a file where a folder should be")
    assert software(tmp_path).unread == ("/etc/modprobe.d: Not a directory",)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with SimulatedKernel(tmp_path / "host", load_description("node-l40s")) as kernel, SimulatedKernelServer(kernel):
        yield kernel


def test_command_tells_findings_and_the_cards_that_could_go_while_the_driver_stays(
    machine: SimulatedKernel, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(machine.writes)
    machine.open_device("/dev/nvidia0", pid=812, comm="nvidia-smi", cgroup="/system.slice/dcgm.service")
    assert main(["devices", "doctor", "--host-root", str(machine.root), "-o", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    held = next(one for one in told["findings"] if one["name"] == "held")
    assert "0000:21:00.0" in held["what"]
    assert held["fix"] == ["sudo systemctl stop dcgm.service"]
    assert any("0000:22:00.0" in note and "0000:21:00.0" not in note for note in told["notes"])
    assert len(machine.writes) == before, "nothing is changed"
    assert main(["devices", "doctor", "--for", "vgpu", "--host-root", str(machine.root)]) == 1
    assert main(["devices", "doctor", "--host-root", str(machine.root / "nowhere")]) == 2
