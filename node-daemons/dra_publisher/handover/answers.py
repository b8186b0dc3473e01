"""What the daemons that prepare devices say of them, as far as it is an answer to the present orders. Pure but for its
memory of when each order came.
"""

from collections.abc import Iterable, Mapping

from crds.models.modes import Mode
from crds.models.node_state import DaemonReport, DesiredDevice, DeviceReport, DeviceState, Intent, NodeStateStatus
from crds.models.vgpu_state import ProfiledCard, VGPUInstance
from dra_publisher.offers.prerequisites import prerequisites
from node_host.handover.entry import entry_digest

_BINDINGS = "bindings"
_PROFILES = "profiles"
_WORST_FIRST = (DeviceState.FAILED, DeviceState.BLOCKED, DeviceState.PENDING, DeviceState.RELEASED, DeviceState.READY)


class Answers:
    """Remembers of each order since which generation it stands: an answer to that one, or a later, is an answer to it.

    So a change of one device's order does not make the answers of all others old. After a start nothing is remembered:
    the present generation is asked for.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, int]] = {}

    def take_up(self, entries: Iterable[DesiredDevice], generation: int) -> None:
        """The orders as they are in this generation."""
        since = {}
        for entry in entries:
            digest = entry_digest(entry)
            before = self._since.get(entry.address)
            known = before is not None and before[0] == digest and before[1] <= generation
            since[entry.address] = before if before is not None and known else (digest, generation)
        self._since = since

    def said(
        self, entries: Iterable[DesiredDevice], status: NodeStateStatus, boot_id: str
    ) -> Mapping[str, DeviceReport]:
        """Of each ordered device the worst that is said of it; devices that not everybody has answered for are left
        out, unless something is wrong with them already.
        """
        found: dict[str, DeviceReport] = {}
        for entry in entries:
            # What is given back is given back by the binder alone; it prepares devices of every mode.
            needed = () if entry.intent is Intent.RELEASE else prerequisites(entry.mode)
            reports = [self._of(entry.address, _report(status, name), boot_id) for name in needed or (_BINDINGS,)]
            known = [report for report in reports if report is not None]
            worst = min(known, key=lambda report: _WORST_FIRST.index(report.state), default=None)
            if worst is not None and (len(known) == len(reports) or worst.state is not DeviceState.READY):
                found[entry.address] = worst
        return found

    def functions(
        self, entries: Iterable[DesiredDevice], status: NodeStateStatus, boot_id: str
    ) -> Mapping[str, Mapping[str, VGPUInstance]]:
        """By card, what the profile writer says of its functions; only of cards that the binder is done with."""
        found: dict[str, Mapping[str, VGPUInstance]] = {}
        for entry in entries:
            if entry.mode is not Mode.VGPU or entry.intent is not Intent.APPLY:
                continue
            bound = self._of(entry.address, _report(status, _BINDINGS), boot_id)
            typed = self._of(entry.address, _report(status, _PROFILES), boot_id)
            if bound is not None and bound.state is DeviceState.READY and isinstance(typed, ProfiledCard):
                found[entry.address] = {one.address: one for one in typed.vgpus if one.uuid is None}
        return found

    def _of(self, address: str, report: DaemonReport | None, boot_id: str) -> DeviceReport | None:
        _, since = self._since.get(address, ("", 0))
        if report is None or report.boot_id != boot_id or (report.observed_generation or 0) < since:
            return None
        return next((device for device in report.devices if device.address == address), None)


def _report(status: NodeStateStatus, name: str) -> DaemonReport | None:
    found = getattr(status, name, None)
    if found is None:
        return None
    return DaemonReport.model_construct(
        observed_generation=found.observed_generation, boot_id=found.boot_id, devices=found.devices
    )
