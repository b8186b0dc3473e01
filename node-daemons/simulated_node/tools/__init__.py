"""The vendor's programs of a simulated host: what they do to its kernel, and what they print."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from node_host.host.protocol import ToolResult
from simulated_node.records import Writer
from simulated_node.tools import nvidia_smi, sriov_manage

if TYPE_CHECKING:
    from simulated_node.kernel import SimulatedKernel

TOOLS: Final[Mapping[str, Callable[["SimulatedKernel", Sequence[str], Writer], ToolResult]]] = {
    sriov_manage.PATH: sriov_manage.run,
    nvidia_smi.PATH: nvidia_smi.run,
}
"""By their paths; a host has those that its description names."""
