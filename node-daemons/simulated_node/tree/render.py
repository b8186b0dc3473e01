"""The whole tree of a machine's kernel."""

from simulated_node.model.state import Machine
from simulated_node.tree.entries import Tree, TreeBuilder
from simulated_node.tree.kernel_files import render_kernel
from simulated_node.tree.network import render_network
from simulated_node.tree.nodes import render_nodes, render_processes
from simulated_node.tree.pci import Memory, render_pci
from simulated_node.tree.storage import render_storage

# Where the rendered tree lives; everything else below the root belongs to the host's disk or its tmpfs.
KERNEL_DIRECTORIES = ("/sys", "/proc", "/dev")


def render(machine: Machine, memory: Memory | None = None) -> Tree:
    """``memory`` is kept by the caller from one rendering to the next of the same machine; it saves time only."""
    out = TreeBuilder()
    for directory in ("/run", "/var/lib", "/etc", "/tmp"):  # noqa: S108 - the simulated host's, not ours
        out.directory(directory)
    out.raw_link("/var/run", "/run")
    render_pci(out, machine, {} if memory is None else memory)
    render_kernel(out, machine)
    render_storage(out, machine)
    render_network(out, machine)
    render_nodes(out, machine)
    render_processes(out, machine)
    return out.tree
