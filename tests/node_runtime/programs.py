"""The programs of a node, found where they were built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cli.cluster.programs.binaries import NODE_PROGRAMS, ensure_binaries
from cli.progress import Progress
from tests.node_runtime.errors import NodeRuntimeError
from tests.node_runtime.sandbox import tool

NAMES = ("kubelet", *NODE_PROGRAMS)
_INTERPRETER = b"/ld-linux"


@dataclass(frozen=True, slots=True)
class NodePrograms:
    """Paths. `network` is the directory of the CNI plugins; `busybox` is linked statically."""

    kubelet: Path
    containerd: Path
    shim: Path
    ctr: Path
    runc: Path
    network: Path
    busybox: Path

    @property
    def search_path(self) -> str:
        """PATH of containerd: it starts the shim by name."""
        return f"{self.shim.parent}:{self.runc.parent}:/usr/sbin:/usr/bin:/sbin:/bin"


def ensure_node_programs(*, bin_dir: Path | None = None, progress: Progress | None = None) -> NodePrograms:
    """Built first where they are not there yet. Raises ClusterError, or NodeRuntimeError without a static busybox."""
    busybox = Path(tool("busybox"))
    with busybox.open("rb") as file:
        if _INTERPRETER in file.read(4096):
            raise NodeRuntimeError(f"{busybox} needs shared libraries: run hack/node-runtime-packages for a static one")
    built = ensure_binaries(NAMES, bin_dir=bin_dir, progress=progress)
    return NodePrograms(
        kubelet=built["kubelet"],
        containerd=built["containerd"],
        shim=built["containerd-shim-runc-v2"],
        ctr=built["ctr"],
        runc=built["runc"],
        network=built["bridge"].parent,
        busybox=busybox,
    )
