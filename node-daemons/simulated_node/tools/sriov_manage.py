"""sriov-manage: makes all virtual functions of a card, or none, with the card off its driver meanwhile.

It refuses nothing: a card with live vGPUs loses them, as with the real one.
Sources: NVIDIA Virtual GPU Software User Guide; stackhpc/ansible-collection-linux, pull request 37 (returns 0 without
functions, "Cannot obtain unbindLock", a card that is left without its driver).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from node_host.host.protocol import ToolResult
from simulated_node.records import Writer
from simulated_node.rules.registry import rule

if TYPE_CHECKING:
    from simulated_node.kernel import SimulatedKernel

PATH: Final = "/usr/lib/nvidia/sriov-manage"
_GUIDE: Final = "NVIDIA Virtual GPU Software User Guide: sriov-manage; stackhpc/ansible-collection-linux, PR 37"
_DEVICES: Final = "/sys/bus/pci/devices"
_STUB: Final = "pci-pf-stub"

MANAGED = rule(
    "tool.sriov-manage-makes-all",
    "sriov-manage -e takes the card off its driver, makes all its VFs and gives it back; -d takes them away.",
    source=_GUIDE,
)
LOCKED = rule(
    "tool.sriov-manage-needs-the-lock",
    "While somebody has a session with the driver open sriov-manage cannot obtain its unbindLock, and does nothing.",
    source=_GUIDE,
)
LIES = rule(
    "tool.sriov-manage-returns-0-without-vfs",
    "sriov-manage may return 0 and have made no VF.",
    source=_GUIDE,
)
LEAVES = rule(
    "tool.sriov-manage-leaves-card-without-driver",
    "When the driver does not take the card back, sriov-manage leaves it without one.",
    source=_GUIDE,
)


def run(kernel: "SimulatedKernel", arguments: Sequence[str], writer: Writer) -> ToolResult:
    """`-e BDF|ALL` or `-d BDF|ALL`."""
    if len(arguments) != 2 or arguments[0] not in ("-e", "-d"):
        return ToolResult(1, "Usage: sriov-manage <-e|-d> <ssss:bb:dd.f|ALL>\n")
    cards = kernel.vgpu_cards() if arguments[1] == "ALL" else [arguments[1]]
    lines, status = [], 0
    for card in cards:
        done, said = _manage(kernel, card, arguments[0] == "-e", writer)
        status |= not done
        lines.append(said)
    return ToolResult(int(status), "".join(f"{line}\n" for line in lines))


def locked(arguments: Sequence[str]) -> ToolResult:
    """What it says while somebody has a session with the driver open."""
    LOCKED.fires()
    return ToolResult(1, f"Cannot obtain unbindLock for {arguments[-1] if arguments else 'ALL'}\n")


def lying() -> ToolResult:
    """What it says when it has done nothing."""
    LIES.fires()
    return ToolResult(0, "")


def _manage(kernel: "SimulatedKernel", card: str, enable: bool, writer: Writer) -> tuple[bool, str]:
    host = kernel.host()
    here = f"{_DEVICES}/{card}"
    if not host.exists(f"{here}/sriov_totalvfs"):
        return False, f"{card} is no card with virtual functions"
    driver = host.read_link(f"{here}/driver").rpartition("/")[2] if host.exists(f"{here}/driver") else ""
    number = host.read(f"{here}/sriov_totalvfs").strip() if enable else b"0"

    def write(path: str, data: bytes) -> None:
        kernel.write(path, data, writer=writer)

    try:
        if driver:
            write(f"/sys/bus/pci/drivers/{driver}/unbind", card.encode())
        kernel.load_module("pci_pf_stub", writer=writer)
        write(f"{here}/driver_override", _STUB.encode())
        write("/sys/bus/pci/drivers_probe", card.encode())
        write(f"{here}/sriov_numvfs", number)
        write(f"/sys/bus/pci/drivers/{_STUB}/unbind", card.encode())
        write(f"{here}/driver_override", b"\n")
    except OSError as error:
        return False, f"{card}: {error.strerror}"
    kernel.forget_mixed_sizes(card)
    try:
        if driver:
            write(f"/sys/bus/pci/drivers/{driver}/bind", card.encode())
    except OSError:
        LEAVES.fires()
        return False, f"{card}: driver does not bind"
    MANAGED.fires()
    return True, f"{'Enabling' if enable else 'Disabling'} VFs on {card}"
