"""nvidia-smi, as far as vGPUs need it: the modes of a card, and its mixed-size mode.

Sources: NVIDIA Virtual GPU Software User Guide (vgpu -shm, heterogeneous vGPUs); NVIDIA MIG User Guide (MIG Mode).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from node_host.host.protocol import ToolResult
from simulated_node.records import Writer
from simulated_node.rules.registry import rule

if TYPE_CHECKING:
    from simulated_node.kernel import CardModes, SimulatedKernel

PATH: Final = "/usr/bin/nvidia-smi"

TELLS = rule(
    "tool.nvidia-smi-tells-modes",
    "nvidia-smi -q tells whether MIG and mixed sizes (heterogeneous mode) are on for a card that its driver has.",
    source="NVIDIA System Management Interface; NVIDIA Virtual GPU Software User Guide",
)
SETS = rule(
    "tool.nvidia-smi-mixes-sizes",
    "nvidia-smi vgpu -shm sets mixed sizes of a card, and fails while a VF of it has a type.",
    source="NVIDIA Virtual GPU Software User Guide, heterogeneous vGPUs",
)


def run(kernel: "SimulatedKernel", arguments: Sequence[str], writer: Writer) -> ToolResult:
    """`-i BDF -q`, or `vgpu -i BDF -shm 0|1`."""
    words = list(arguments)
    if "-i" not in words[:-1]:
        return ToolResult(1, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n")
    card = words[words.index("-i") + 1]
    modes = kernel.card_modes(card)
    if modes is None:
        return ToolResult(6, f"No devices were found for {card}\n")
    if words[0] == "vgpu" and "-shm" in words[:-1]:
        return _mix(kernel, card, words[words.index("-shm") + 1] == "1")
    if "-q" in words:
        TELLS.fires()
        return ToolResult(0, _query(card, modes))
    return ToolResult(1, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n")


def _mix(kernel: "SimulatedKernel", card: str, allowed: bool) -> ToolResult:
    try:
        kernel.mix_vgpu_sizes(card, allowed)
    except OSError:
        return ToolResult(255, f"Unable to set heterogeneous mode on {card}: In use by another client\n")
    SETS.fires()
    return ToolResult(0, f"Set vGPU heterogeneous mode on {card}\n")


def _query(card: str, modes: "CardModes") -> str:
    def word(on: bool | None) -> str:
        return "N/A" if on is None else "Enabled" if on else "Disabled"

    return "\n".join(
        [
            "==============NVSMI LOG==============",
            f"GPU {card}",
            "    MIG Mode",
            f"        Current                           : {word(modes.mig)}",
            f"        Pending                           : {word(modes.mig)}",
            "    GPU Virtualization Mode",
            "        Virtualization Mode               : Host VGPU",
            "        Host VGPU Mode                    : SR-IOV",
            f"        vGPU Heterogeneous Mode           : {word(modes.mixed)}",
            "",
        ]
    )
