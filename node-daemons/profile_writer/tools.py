"""The vendor's programs: what is asked of them, and what their answers mean.

Sources: NVIDIA Virtual GPU Software User Guide (sriov-manage -e and -d; nvidia-smi vgpu -shm, "vGPU Heterogeneous
Mode"); NVIDIA System Management Interface (nvidia-smi -q, MIG Mode).
"""

import re
from dataclasses import dataclass
from typing import Final

from profile_writer.card import Switch

SRIOV_MANAGE: Final = "/usr/lib/nvidia/sriov-manage"
NVIDIA_SMI: Final = "/usr/bin/nvidia-smi"
UNBIND_LOCK: Final = "unbindLock"
"""In the output of sriov-manage: somebody has a session with the driver open, which passes."""

_MODE: Final = re.compile(r"Heterogeneous[^:\n]*Mode\s*:\s*(\S+)", re.IGNORECASE)
_MIG: Final = re.compile(r"MIG Mode\s*\n\s*Current\s*:\s*(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ToolPaths:
    """Where they are on the host."""

    sriov_manage: str = SRIOV_MANAGE
    nvidia_smi: str = NVIDIA_SMI


@dataclass(frozen=True, slots=True)
class CardModes:
    """The modes of a card as nvidia-smi tells them."""

    mig: Switch = Switch.UNKNOWN
    mixed: Switch = Switch.UNKNOWN


def query(address: str) -> tuple[str, ...]:
    """Arguments of nvidia-smi that have it tell about a card."""
    return ("-i", address, "-q")


def mix(address: str, allowed: bool) -> tuple[str, ...]:
    """Arguments of nvidia-smi that set mixed sizes on a card."""
    return ("vgpu", "-i", address, "-shm", "1" if allowed else "0")


def parse_modes(output: str) -> CardModes:
    """What the answer to `query` says; what it does not say, or says otherwise, is unknown."""
    return CardModes(_switch(_MIG.search(output)), _switch(_MODE.search(output)))


def _switch(found: re.Match[str] | None) -> Switch:
    word = found[1].strip().lower() if found is not None else ""
    # A card that has no MIG says N/A.
    return {"enabled": Switch.ON, "disabled": Switch.OFF, "n/a": Switch.OFF}.get(word, Switch.UNKNOWN)
