"""The whole tree of a machine's kernel."""

from simulated_node.model.state import Machine
from simulated_node.tree.entries import Memory, Tree, TreeBuilder
from simulated_node.tree.kernel_files import render_kernel
from simulated_node.tree.network import render_network
from simulated_node.tree.nodes import render_nodes, render_processes
from simulated_node.tree.pci import render_pci
from simulated_node.tree.storage import render_storage

# Where the rendered tree lives; everything else below the root belongs to the host's disk or its tmpfs.
KERNEL_DIRECTORIES = ("/sys", "/proc", "/dev")


def render(machine: Machine, memory: Memory | None = None) -> Tree:
    """``memory`` is the caller's, cleared at each boot."""
    out, memory = TreeBuilder(), memory or Memory()
    memory.add(out, "disk", None, _render_disk)
    render_pci(out, machine, memory)
    render_kernel(out, machine, memory)
    render_storage(out, machine, memory)
    render_network(out, machine, memory)
    render_nodes(out, machine, memory)
    render_processes(out, machine, memory)
    return out.tree


def _render_disk(out: TreeBuilder) -> None:
    for directory in ("/run", "/var/lib", "/etc", "/tmp"):  # noqa: S108 - the simulated host's, not ours
        out.directory(directory)
    out.raw_link("/var/run", "/run")
