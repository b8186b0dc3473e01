"""The writes that move one PCI function from driver to driver, or change its virtual functions, in the kernel's words.

Source: Documentation/ABI/testing/sysfs-bus-pci, drivers/base/bus.c, drivers/pci/iov.c. `new_id` is never used: it would
take every twin.
"""

from functools import partial
from typing import Final

from node_host.acting.bounded_write import BoundedWriter
from node_host.acting.locks import Locks
from node_host.bounded_call import BoundedCalls
from node_host.host import Host
from node_host.pci.device import DEVICES, DRIVERS, DRIVERS_PROBE, PCIDevice, read_device

_NO_OVERRIDE: Final = b"\n"  # a zero-length write would never reach the kernel


class DriverWrites:
    """Bounded writes and the reads that verify them, under locks that the caller holds."""

    def __init__(self, host: Host, calls: BoundedCalls, writer: BoundedWriter, locks: Locks) -> None:
        self._host = host
        self._calls = calls
        self._writer = writer
        self._locks = locks

    async def override(self, address: str, driver: str | None) -> None:
        """Pin the device to a driver, or to none in particular."""
        data = _NO_OVERRIDE if driver is None else f"{driver}\n".encode()
        await self._writer.write(f"{DEVICES}/{address}/driver_override", data, self._locks)

    async def unbind(self, address: str, driver: str) -> None:
        """Take the device from its driver. May block for as long as a user holds it."""
        await self._writer.write(f"{DRIVERS}/{driver}/unbind", address.encode(), self._locks)

    async def bind(self, address: str, driver: str) -> None:
        """Give a driverless device to a driver; the probe's own error comes out."""
        await self._writer.write(f"{DRIVERS}/{driver}/bind", address.encode(), self._locks)

    async def probe(self, address: str) -> None:
        """Have the kernel look for a driver. Succeeds whether one took the device or not: read it again."""
        await self._writer.write(DRIVERS_PROBE, address.encode(), self._locks)

    async def functions(self, address: str, number: int) -> None:
        """How many virtual functions it has. Destroying them may block for as long as a user holds one."""
        await self._writer.write(f"{DEVICES}/{address}/sriov_numvfs", f"{number}\n".encode(), self._locks)

    async def autoprobe(self, address: str, value: bool) -> None:
        """Whether virtual functions that are made from now on are offered to drivers."""
        await self._writer.write(f"{DEVICES}/{address}/sriov_drivers_autoprobe", b"%d\n" % value, self._locks)

    async def read(self, address: str) -> PCIDevice:
        """The device now. Raises DeviceGoneError, DeviceUnreadableError or HungError."""
        return await self._calls.run(address, partial(read_device, self._host, address))
