"""A host whose network card makes virtual functions, and short words for ordering it about."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from node_host.host import Host
from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts

PORT = "0000:00:02.0"
PF = "0000:01:00.0"
VFS = ("0000:01:10.0", "0000:01:10.2", "0000:01:10.4", "0000:01:10.6")
NUMVFS = hosts.attribute(PF, "sriov_numvfs")
TOTALVFS = hosts.attribute(PF, "sriov_totalvfs")
AUTOPROBE = hosts.attribute(PF, "sriov_drivers_autoprobe")

BRIDGE = {
    "address": PORT,
    "parent": "pci0000:00",
    "vendor": "8086",
    "device": "2030",
    "class": "060400",
    "iommuGroup": 1,
}


def physical(**changes: Any) -> dict[str, Any]:
    """A network card as QEMU's igb: eight VFs, of which the driver allows seven."""
    return {
        "address": PF,
        "parent": PORT,
        "vendor": "8086",
        "device": "10c9",
        "class": "020000",
        "subsystemVendor": "8086",
        "subsystemDevice": "a03c",
        "numaNode": 1,
        "iommuGroup": 3,
        "serial": "0102030405060708",
        "sriovTotalVFs": 8,
        "virtualFunctions": {"device": "10ca"},
        **changes,
    }


def with_pf(tmp_path: Path, *others: dict[str, Any], **changes: Any) -> AbstractContextManager[SimulatedKernel]:
    return hosts.running(
        tmp_path,
        devices=[BRIDGE, physical(**changes), *others],
        virtualInterfaces=[],
        volumes=[],
        mounts=[],
    )


def there(host: Host) -> list[str]:
    """The addresses behind the virtfn links, in their order."""
    links = [name for name in host.list(f"{hosts.DEVICES}/{PF}") if name.startswith("virtfn")]
    return [host.read_link(hosts.attribute(PF, name)).rpartition("/")[2] for name in sorted(links)]


def set_vfs(host: Host, number: int) -> None:
    host.write(NUMVFS, str(number).encode())
