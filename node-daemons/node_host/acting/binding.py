"""Moving one device to a VFIO driver and back, so that dying at any point leaves something that the next run repairs.

The journal entry is on disk before the first write and goes after the return was verified. A success that the kernel
reports proves nothing: the driver link is read again. A bind that fails after its first write is rolled back.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from crds.models.bindings import BindingReason as Reason
from crds.models.modes import IOMMUBackend
from node_host.acting.actions import Bind, Outcome, Result, Return
from node_host.acting.bounded_write import WriteStuckError
from node_host.acting.driver_writes import DriverWrites
from node_host.acting.journal import Journal, JournalEntry, JournalError
from node_host.acting.steps import FAILURES, NotVerifiedError, gone, settled, step, words
from node_host.bounded_call import BoundedCalls, HungError
from node_host.host import Host
from node_host.pci.device import DRIVERS, DeviceGoneError, PCIDevice
from node_host.pci.vfio_drivers import driver_directory, is_vfio_driver, module_of
from node_host.pci.vfio_nodes import missing_node, read_vfio_nodes


class DeviceMover:
    """Moves devices of one group whose locks the caller holds; the caller has also checked that each may be moved."""

    def __init__(
        self,
        host: Host,
        calls: BoundedCalls,
        journal: Journal,
        writes: DriverWrites,
        loading: asyncio.Lock,
        users: Callable[[str], Awaitable[str | None]],
    ) -> None:
        """``loading`` is held while a module is loaded, so that groups do not load the same one side by side.

        ``users`` looks who uses a device now, in words; None when nobody does.
        """
        self._host = host
        self._calls = calls
        self._journal = journal
        self._writes = writes
        self._loading = loading
        self._users = users
        self._bound: dict[str, JournalEntry] = {}

    async def bind(self, action: Bind, device: PCIDevice) -> Outcome:
        """To the VFIO driver of ``action.module``; ``device`` is as it was read under the locks."""
        address = action.address
        driver = await self._registered_driver(action.module, address)
        if isinstance(driver, Outcome):
            return driver
        entry = self._bound[address] = replace(action.entry, bound_driver=driver)
        try:
            await self._calls.run("journal", partial(self._journal.put, address, entry))
        except (JournalError, HungError) as error:
            return Outcome(address, Result.BLOCKED, Reason.JOURNAL_UNREADABLE, f"not changed: {error}")
        try:
            device = await self._to_driver(device, driver)
            await self._verify_nodes(device, action.backend)
        except WriteStuckError as error:
            return Outcome(address, Result.FAILED, Reason.WRITE_STUCK, str(error))
        except DeviceGoneError:
            return gone(address)
        except FAILURES as error:
            reason = Reason.VERIFY_FAILED if isinstance(error, NotVerifiedError) else Reason.BIND_FAILED
            return await self._rolled_back(address, entry, reason, words(error))
        return Outcome(address, Result.DONE, Reason.BOUND)

    async def undo(self, action: Bind, why: str) -> Outcome:
        """Take back a bind of this run, because the rest of its group could not follow."""
        return await self._rolled_back(action.address, self._bound[action.address], Reason.BIND_FAILED, why)

    async def give_back(self, action: Return) -> Outcome:
        """To the driver that it had, or to none if it had none."""
        address, entry = action.address, action.entry
        if entry.former_driver:
            missing = await self._missing_driver(entry.former_driver, address)
            if missing is not None:
                return missing
        return await settled(address, self._returned(address, entry), Reason.RELEASED, change="given back")

    async def _returned(self, address: str, entry: JournalEntry) -> None:
        await self._to_former(address, entry)
        await self._calls.run("journal", partial(self._journal.drop, address))

    async def _to_driver(self, device: PCIDevice, driver: str) -> PCIDevice:
        address = device.address
        if device.driver_override != driver:
            await step("driver_override", self._writes.override(address, driver))
            device = await self._writes.read(address)
            if device.driver_override != driver:
                # Without it the probe would give a driverless device to a driver that it did not have before.
                raise NotVerifiedError(f"driver_override reads {device.driver_override or 'nothing'}, not {driver}")
        if device.driver is not None:
            await step(f"unbind from {device.driver}", self._writes.unbind(address, device.driver))
        await step("drivers_probe", self._writes.probe(address))
        device = await self._writes.read(address)
        if device.driver != driver:
            # drivers_probe hides what the probe said; bind tells.
            await step(f"bind to {driver}", self._writes.bind(address, driver))
            device = await self._writes.read(address)
        if device.driver != driver:
            raise NotVerifiedError(f"the kernel reports success, but the device is on {device.driver or 'no driver'}")
        return device

    async def _to_former(self, address: str, entry: JournalEntry) -> str | None:
        """The former driver and override again; the driver that it is on then.

        A driver that is neither VFIO nor the former one is somebody else's choice, and stays.
        """
        former = entry.former_driver or None
        device = await self._writes.read(address)
        # An override that the device had beside another driver would keep that driver away from it.
        during = entry.former_override if entry.former_override == former else None
        # A VFIO driver that is not the entry's is the one before it: a move between the two was cut short.
        if (device.driver is None or is_vfio_driver(device.driver)) and device.driver != former:
            if device.driver_override != during:
                await step("clear driver_override", self._writes.override(address, during))
            if device.driver is not None:
                await step(f"unbind from {device.driver}", self._writes.unbind(address, device.driver))
            if former is not None:
                await self._back_to(address, former)
            device = await self._writes.read(address)
            if device.driver != former:
                raise NotVerifiedError(
                    f"the kernel reports success, but the device is on {device.driver or 'no driver'} instead of "
                    f"{former or 'no driver'}"
                )
        if device.driver_override != entry.former_override:
            await step("restore driver_override", self._writes.override(address, entry.former_override))
        return device.driver

    async def _back_to(self, address: str, former: str) -> None:
        await step("drivers_probe", self._writes.probe(address))
        device = await self._writes.read(address)
        if device.driver is not None and device.driver != former:
            await step(f"unbind from {device.driver}", self._writes.unbind(address, device.driver))
        if device.driver != former:
            await step(f"bind to {former}", self._writes.bind(address, former))

    async def _rolled_back(self, address: str, entry: JournalEntry, reason: Reason, why: str) -> Outcome:
        """Back as it was; but what somebody has opened since it was bound is left to him, and remembered."""
        try:
            users = await self._users(address)
            if users is not None:
                text = f"{why}; not rolled back to {entry.former_driver or 'no driver'}, because it is {users}"
                return Outcome(address, Result.FAILED, reason, text)
            now = await self._to_former(address, entry)
            await self._calls.run("journal", partial(self._journal.drop, address))
        except DeviceGoneError:
            return gone(address)
        except (*FAILURES, WriteStuckError, JournalError) as error:
            text = f"{why}; not rolled back to {entry.former_driver or 'no driver'}: {words(error)}"
            return Outcome(address, Result.FAILED, reason, text)
        return Outcome(address, Result.FAILED, reason, f"{why}; rolled back to {now or 'no driver'}")

    async def _verify_nodes(self, device: PCIDevice, backend: IOMMUBackend) -> None:
        """A VM gets at the device through its group's node, or through its own where the kernel has IOMMUFD nodes."""
        nodes = await self._calls.run("vfio nodes", partial(read_vfio_nodes, self._host))
        missing = missing_node(device, backend, nodes)
        if missing is not None:
            raise NotVerifiedError(f"it is on {device.driver}, but {missing}")

    async def _registered_driver(self, module: str, address: str) -> str | Outcome:
        """The driver's directory name, its module loaded when need be."""
        async with self._loading:
            driver = driver_directory(module, await self._drivers())
            if driver is not None:
                return driver
            failed = await self._load(module, address, Reason.MODULE_MISSING)
            if failed is not None:
                return failed
            driver = driver_directory(module, await self._drivers())
        if driver is None:
            text = f"module {module} is loaded, but registers no PCI driver of that name"
            return Outcome(address, Result.BLOCKED, Reason.DRIVER_MISSING, text)
        return driver

    async def _missing_driver(self, driver: str, address: str) -> Outcome | None:
        async with self._loading:
            if driver in await self._drivers():
                return None
            failed = await self._load(module_of(driver), address, Reason.DRIVER_MISSING)
            if failed is not None:
                return failed
            if driver in await self._drivers():
                return None
        text = f"its former driver {driver} is not registered in the kernel; load it, the device waits for it"
        return Outcome(address, Result.BLOCKED, Reason.DRIVER_MISSING, text)

    async def _load(self, module: str, address: str, missing: Reason) -> Outcome | None:
        try:
            await self._calls.run(f"module {module}", partial(self._host.load_module, module))
        except FileNotFoundError:
            text = f"the kernel has no module {module}; install the package that has it"
            return Outcome(address, Result.BLOCKED, missing, text)
        except (OSError, HungError) as error:
            return Outcome(address, Result.BLOCKED, missing, f"module {module} cannot be loaded: {words(error)}")
        return None

    async def _drivers(self) -> frozenset[str]:
        try:
            return frozenset(await self._calls.run("pci drivers", partial(self._host.list, DRIVERS)))
        except (OSError, HungError):
            return frozenset()
