"""Processes that open and close device nodes: virtual machines, runtimes, tools."""

import hashlib

from simulated_node.description import DriverKind
from simulated_node.model import nodes, vfio
from simulated_node.model.state import Machine, Process
from simulated_node.rules.registry import rule

NO_NODE = rule("open.no-such-node", "Opening a node that is not there fails.", errno="ENOENT", source="open(2)")
NOT_OPEN = rule(
    "open.close-what-is-open", "Closing what the process does not hold fails.", errno="EBADF", source="close(2)"
)
POD_CGROUP = rule(
    "open.pod-in-cgroup",
    "A process's cgroup is in /proc/<pid>/cgroup; that of a pod's process has the pod's UID in its name.",
    source="proc_pid_cgroup(5); kubelet pkg/kubelet/cm/pod_container_manager_linux.go",
)


def pod_cgroup(uid: str) -> str:
    """The cgroup of a container of a pod, as the kubelet and containerd name it with systemd."""
    POD_CGROUP.fires()
    name = uid.replace("-", "_")
    container = hashlib.sha256(uid.encode()).hexdigest()
    return (
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{name}.slice/cri-containerd-{container}.scope"
    )


def open_node(machine: Machine, node: str, *, pid: int, comm: str, cgroup: str, takes_device: bool = True) -> int:
    """A process, started when it is not there yet, opens a node of /dev; its new descriptor.

    ``takes_device``: through a VFIO group it takes the devices of the group as well, as a virtual machine does.
    """
    groups = vfio.group_nodes(machine)
    own = {made.name for device in machine.devices.values() for made in nodes.visible(device)}
    if node not in groups and node not in own and node not in shared_nodes(machine):
        raise NO_NODE.refuses(f"there is no /dev/{node}")
    if node in groups or node.startswith("vfio/devices/"):
        vfio.refuse_open(machine, node, takes_device=takes_device)
    process = machine.processes.setdefault(pid, Process(pid, comm, cgroup))
    descriptor = next(number for number in range(3, len(process.handles) + 4) if number not in process.handles)
    process.handles[descriptor] = node
    if node in groups and not takes_device:
        process.bare.add(descriptor)
    return descriptor


def close_node(machine: Machine, node: str, *, pid: int | None) -> None:
    """Close every handle on a node, of one process or of all; a process without handles ends."""
    names = (node, f"{node} (deleted)")
    holders = [process for process in machine.processes.values() if pid in (None, process.pid)]
    closed = False
    for process in holders:
        for descriptor in [number for number, name in process.handles.items() if name in names]:
            del process.handles[descriptor]
            process.bare.discard(descriptor)
            closed = True
        if not process.handles:
            del machine.processes[process.pid]
    if not closed:
        raise NOT_OPEN.refuses(f"nobody holds /dev/{node} open" if pid is None else f"{pid} does not hold /dev/{node}")


def shared_nodes(machine: Machine) -> list[str]:
    """Nodes that stand for a whole driver: vfio's while it is registered, a native one's while it holds a device."""
    used = {device.driver for device in machine.devices.values()}
    drivers = [
        driver.description
        for driver in machine.drivers.values()
        if driver.name in used or driver.description.kind is DriverKind.VFIO
    ]
    names = {name for driver in drivers for name in driver.shared_nodes}
    if any(vfio.is_on_vfio(machine, device) for device in machine.devices.values()):
        names.add("vfio/vfio")
    return sorted(names)
