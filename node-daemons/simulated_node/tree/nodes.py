"""/dev and the processes that hold parts of it. Nodes are plain files here: what counts is whether they are there."""

from functools import partial

from simulated_node.model import handles, nodes, vfio
from simulated_node.model.state import Machine
from simulated_node.tree.entries import Memory, TreeBuilder

_NODE = 0o600


def render_nodes(out: TreeBuilder, machine: Machine, memory: Memory) -> None:
    own = {node.name for device in machine.devices.values() for node in nodes.visible(device)}
    names = tuple(sorted({*own, *vfio.group_nodes(machine), *handles.shared_nodes(machine)}))
    memory.add(out, "nodes", names, partial(_render_names, names=names))


def _render_names(out: TreeBuilder, names: tuple[str, ...]) -> None:
    out.directory("/dev")
    for name in names:
        out.file(f"/dev/{name}", b"", _NODE)


def render_processes(out: TreeBuilder, machine: Machine, memory: Memory) -> None:
    """/proc/<pid>/{comm,cgroup,fd} of the simulated processes, and of init, which is also "self" to a file's reader."""
    memory.add(out, "init", None, _render_init)
    gone = {node.name for one in machine.devices.values() for node in one.nodes if node not in nodes.visible(one)}
    for process in machine.processes.values():
        held = {number: f"{name} (deleted)" if name in gone else name for number, name in process.handles.items()}
        looks = process.comm, process.cgroup, held
        render = partial(_render_process, pid=process.pid, comm=process.comm, cgroup=process.cgroup, open_nodes=held)
        memory.add(out, f"process {process.pid}", looks, render)


def _render_init(out: TreeBuilder) -> None:
    out.raw_link("/proc/self", "1")
    out.raw_link("/proc/net", "self/net")
    out.raw_link("/proc/mounts", "self/mounts")
    _render_process(out, 1, "systemd", "/init.scope", {})


def _render_process(out: TreeBuilder, pid: int, comm: str, cgroup: str, open_nodes: dict[int, str]) -> None:
    here = f"/proc/{pid}"
    out.file(f"{here}/comm", comm)
    out.file(f"{here}/cgroup", f"0::{cgroup}")
    out.directory(f"{here}/fd")
    for descriptor, name in open_nodes.items():
        out.raw_link(f"{here}/fd/{descriptor}", f"/dev/{name}")
