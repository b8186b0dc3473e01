"""Making one step of a card, under locks that the caller holds, and seeing whether it has come true.

A success that is reported proves nothing: vendors' programs return 0 on failure, and a driver may take a write and do
nothing. So after each step what was to change is read again.
"""

import logging
from functools import partial
from typing import Final

from crds.models.profiling import ProfileReason as Reason
from node_host.acting.bounded_tool import BoundedTools, ToolStuckError
from node_host.acting.bounded_write import BoundedWriter, WriteStuckError
from node_host.acting.driver_writes import DriverWrites
from node_host.acting.locks import Locks
from node_host.acting.steps import words
from node_host.bounded_call import BoundedCalls, HungError
from node_host.host import HostWithTools
from node_host.pci.device import DEVICES, DeviceGoneError, DeviceUnreadableError
from node_host.vgpu.functions import CURRENT, read_function
from node_host.vgpu.mdev import DEVICES as MDEVS
from node_host.vgpu.mdev import PARENTS
from profile_writer.card import (
    CardSeen,
    ClearType,
    CreateMdev,
    DisableFunctions,
    EnableFunctions,
    FindDriver,
    MixSizes,
    Obstacle,
    RemoveMdev,
    SetType,
    Step,
    Switch,
)
from profile_writer.tools import CardModes, ToolPaths, mix, parse_modes, query

_log = logging.getLogger(__name__)

_WORDS: Final = 200


class CardSteps:
    """Makes steps of one card. A step that fails returns why; one that is done returns None."""

    def __init__(
        self,
        host: HostWithTools,
        calls: BoundedCalls,
        writer: BoundedWriter,
        tools: BoundedTools,
        paths: ToolPaths,
        locks: Locks,
        address: str,
    ) -> None:
        self._host = host
        self._calls = calls
        self._writer = writer
        self._tools = tools
        self._paths = paths
        self._locks = locks
        self._address = address
        self._writes = DriverWrites(host, calls, writer, locks)

    async def make(self, step: Step, seen: CardSeen) -> Obstacle | None:
        """Do it and look whether it is done."""
        failure = _REASONS[type(step)]
        try:
            match step:
                case EnableFunctions(number):
                    return await self._enable(number, seen)
                case DisableFunctions():
                    return await self._disable(seen)
                case FindDriver():
                    await self._writes.probe(self._address)
                    driver = (await self._writes.read(self._address)).driver
                    return None if driver else Obstacle(failure, "no driver has taken the card")
                case MixSizes(allowed):
                    return await self._mix(allowed)
                case ClearType(function):
                    return await self._type(function, 0)
                case SetType(function, type_id):
                    return await self._type(function, type_id)
                case CreateMdev(parent, directory, uuid):
                    path = f"{PARENTS}/{parent}/mdev_supported_types/{directory}/create"
                    await self._writer.write(path, uuid.encode(), self._locks)
                    return None if await self._has_mdev(uuid) else Obstacle(failure, f"there is no {uuid} after all")
                case RemoveMdev(_, uuid):
                    await self._writer.write(f"{MDEVS}/{uuid}/remove", b"1", self._locks)
                    return Obstacle(failure, f"{uuid} is still there") if await self._has_mdev(uuid) else None
        except (WriteStuckError, ToolStuckError) as error:
            return Obstacle(Reason.WRITE_STUCK, str(error))
        except DeviceGoneError:
            return Obstacle(failure, "the card vanished while it was changed")
        except (OSError, HungError, DeviceUnreadableError) as error:
            return Obstacle(failure, words(error))

    async def modes(self) -> CardModes:
        """What nvidia-smi says of the card's modes; unknown where it says nothing. Changes nothing."""
        try:
            result = await self._tools.run(self._paths.nvidia_smi, query(self._address), self._locks)
        except (OSError, ToolStuckError) as error:
            _log.info("The modes of %s are not known: %s", self._address, error)
            return CardModes()
        return parse_modes(result.output) if result.status == 0 else CardModes()

    async def _enable(self, number: int, seen: CardSeen) -> Obstacle | None:
        said = ""
        if seen.has_tool:
            said = await self._manage("-e")
        else:
            await self._writes.functions(self._address, number)
        device = await self._writes.read(self._address)
        if not device.num_vfs:
            why = f"none of {number} virtual functions is there{said}"
            return Obstacle(Reason.FUNCTIONS_FAILED, why)
        return None

    async def _disable(self, seen: CardSeen) -> Obstacle | None:
        said = ""
        if seen.has_tool:
            said = await self._manage("-d")
        else:
            await self._writes.functions(self._address, 0)
        device = await self._writes.read(self._address)
        if device.num_vfs:
            return Obstacle(Reason.FUNCTIONS_FAILED, f"{device.num_vfs} virtual functions are still there{said}")
        return None

    async def _manage(self, what: str) -> str:
        """Run sriov-manage; what it said, for a message."""
        result = await self._tools.run(self._paths.sriov_manage, (what, self._address), self._locks)
        text = " ".join(result.output.split())[-_WORDS:]
        ended = f" (exit status {result.status})" if result.status else ""
        return f": {self._paths.sriov_manage} {what} said: {text or 'nothing'}{ended}"

    async def _mix(self, allowed: bool) -> Obstacle | None:
        result = await self._tools.run(self._paths.nvidia_smi, mix(self._address, allowed), self._locks)
        now = await self.modes()
        if now.mixed is (Switch.ON if allowed else Switch.OFF):
            return None
        text = " ".join(result.output.split())[-_WORDS:]
        said = f"{self._paths.nvidia_smi} {' '.join(mix(self._address, allowed))} said: {text or 'nothing'}"
        return Obstacle(Reason.MIXED_SIZES_FAILED, f"mixed sizes are {now.mixed} after they were set: {said}")

    async def _has_mdev(self, uuid: str) -> bool:
        return await self._calls.run(f"mdev {uuid}", partial(self._host.exists, f"{MDEVS}/{uuid}"))

    async def _type(self, function: str, type_id: int) -> Obstacle | None:
        await self._writer.write(f"{DEVICES}/{function}/{CURRENT}", b"%d\n" % type_id, self._locks)
        now = await self._calls.run(f"types of {function}", partial(read_function, self._host, function))
        if now is None:
            return Obstacle(Reason.TYPE_FAILED, "the function vanished while it was changed")
        if now.current != type_id:
            wanted = f"type {type_id}" if type_id else "no type"
            return Obstacle(Reason.TYPE_FAILED, f"it was given {wanted} and reads {now.current}: {now.fault or ''}")
        return None


_REASONS: Final[dict[type[Step], Reason]] = {
    EnableFunctions: Reason.FUNCTIONS_FAILED,
    DisableFunctions: Reason.FUNCTIONS_FAILED,
    FindDriver: Reason.DRIVER_MISSING,
    MixSizes: Reason.MIXED_SIZES_FAILED,
    ClearType: Reason.TYPE_FAILED,
    SetType: Reason.TYPE_FAILED,
    CreateMdev: Reason.TYPE_FAILED,
    RemoveMdev: Reason.TYPE_FAILED,
}
