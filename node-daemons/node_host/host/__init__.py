"""The host port: how a daemon reads a host and orders it about, whichever kernel is behind it."""

from pathlib import Path

from node_host.host.kernel_files import KernelFiles
from node_host.host.protocol import Host, HostWithTools, ToolResult, Uevent
from node_host.host.simulated import SimulatedHost
from node_host.host.write_child import SOCKET

__all__ = ["Host", "HostWithTools", "KernelFiles", "SimulatedHost", "ToolResult", "Uevent", "open_host"]


def open_host(root: str | Path) -> HostWithTools:
    """The host whose root is mounted at ROOT: a simulated kernel's when its socket is there, else the real kernel's
    files.
    """
    if (Path(root) / SOCKET).exists():
        return SimulatedHost(root)
    return KernelFiles(root)
