"""One PCI function as sysfs shows it.

Parsing is pure; `read_device` is the only reader. Sources: Documentation/ABI/testing/sysfs-bus-pci and
drivers/pci/pci-sysfs.c. A function that vanishes while it is read is `DeviceGoneError`; one whose identity, driver or
IOMMU group cannot be read is `DeviceUnreadableError`, because nothing may be decided about it; any other attribute that
fails is a fault of the record.
"""

import errno
import re
from dataclasses import dataclass, field, replace
from typing import Final

from node_host.host import Host
from node_host.pci.serial import serial_number

DEVICES: Final = "/sys/bus/pci/devices"
DRIVERS: Final = "/sys/bus/pci/drivers"
DRIVERS_PROBE: Final = "/sys/bus/pci/drivers_probe"
# What faults of the serial number are named after: the files that it is read from, or itself when they never answer.
SERIAL: Final = "serial"
SERIAL_SOURCES: Final = frozenset({"config", "vpd", SERIAL})

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_ROOT = re.compile(r"/sys/devices/(pci[0-9a-f]{4,8}:[0-9a-f]{2})/")
_HEX = re.compile(rb"0x([0-9a-f]{4}|[0-9a-f]{6})\n?")
_DECIMAL = re.compile(rb"-?[0-9]{1,9}\n?")
_DRIVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MODALIAS = re.compile(rb"pci:[!-~]{1,200}\n?")
_FUNCTION = re.compile(r"virtfn[0-9]+")
_VFIO_DEVICE = re.compile(r"vfio[0-9]+")
_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})
_MOST_FUNCTIONS = 0xFFFF
_SHOWN = 60  # characters of a wrong value that a message repeats


class DeviceGoneError(Exception):
    """The function vanished while it was read."""


class DeviceUnreadableError(Exception):
    """What must be known before anything is decided about the function cannot be read; the text says what and why."""


class MalformedError(ValueError):
    """An attribute holds something that the kernel does not write; the text repeats the start of it."""


@dataclass(frozen=True, slots=True)
class PCIDevice:
    """One function. Ids are lower-case hex without 0x; None means absent or unknown unless said otherwise."""

    address: str
    vendor: str
    device: str
    class_code: str
    subsystem: str | None = None
    modalias: str = ""
    driver: str | None = None
    driver_override: str | None = None
    iommu_group: int | None = None
    numa_node: int | None = None
    pcie_root: str | None = None
    physical_function: str | None = None
    total_vfs: int | None = None
    # 0 when the function cannot have VFs; None when it can and the number cannot be read.
    num_vfs: int | None = 0
    virtual_functions: tuple[str, ...] = ()
    # Routing id of the first virtual function, and from each to the next, counted from the function's own.
    first_vf_offset: int | None = None
    vf_stride: int | None = None
    # Whether the kernel offers new virtual functions to drivers; None: there is no such switch, or it cannot be read.
    autoprobe: bool | None = None
    # None: it is a display controller and the attribute cannot be read.
    boot_vga: bool | None = False
    vfio_device: str | None = None
    serial: str | None = None
    # Attribute name: what is wrong with it.
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def is_bridge(self) -> bool:
        """Bridges (class 06) stay with the host; "other bridge" (0680) is what switches between accelerators call
        themselves, which are endpoints to the kernel."""
        return self.class_code.startswith("06") and not self.class_code.startswith("0680")

    @property
    def is_virtual(self) -> bool:
        """Whether it is an SR-IOV virtual function."""
        return self.physical_function is not None

    @property
    def possible_functions(self) -> frozenset[str]:
        """Addresses of the virtual functions that it could have (SR-IOV: routing ids at an offset, in strides)."""
        if not self.total_vfs or self.first_vf_offset is None or self.vf_stride is None:
            return frozenset(self.virtual_functions)
        domain, bus, slot, function = re.split("[:.]", self.address)
        first = (int(bus, 16) << 8) + (int(slot, 16) << 3) + int(function) + self.first_vf_offset
        ids = [first + number * self.vf_stride for number in range(min(self.total_vfs, _MOST_FUNCTIONS))]
        found = (f"{domain}:{one >> 8:02x}:{one >> 3 & 31:02x}.{one & 7}" for one in ids if 0 <= one >> 8 <= 255)
        return frozenset((*found, *self.virtual_functions))

    @property
    def serial_unknown(self) -> bool:
        """Whether it may have a serial number that could not be read."""
        return self.serial is None and not SERIAL_SOURCES.isdisjoint(self.faults)

    @property
    def identity(self) -> str:
        """What tells this device from another that may come to its address."""
        return identity_of(self.vendor, self.device, self.serial)


def is_address(name: str) -> bool:
    """Whether a directory name is a PCI address (BDF)."""
    return _ADDRESS.fullmatch(name) is not None


def identity_of(vendor: str, device: str, serial: str | None) -> str:
    """`vendor:device[:serial]`; without a serial none is known."""
    return f"{vendor}:{device}" + (f":{serial}" if serial else "")


def same_identity(one: str, other: str) -> bool:
    """Whether two `vendor:device[:serial]` may be the same device.

    A serial counts where both have one: one that cannot be read for a moment does not make a device another one.
    """
    if one == other:
        return True
    left, right = one.split(":", 2), other.split(":", 2)
    return left[:2] == right[:2] and (len(left) != len(right) or left == right)


def last_address(path: str) -> str | None:
    """The function that a path below /sys/devices leads through last: the one nearest to what the path names."""
    return next((part for part in reversed(path.split("/")) if is_address(part)), None)


def parse_hex(value: bytes, digits: int) -> str:
    """The digits of `0x` + ``digits`` lower-case hex digits; MalformedError for anything else."""
    found = _HEX.fullmatch(value)
    if found is None or len(found[1]) != digits:
        raise MalformedError(f"{shown(value)} is not 0x and {digits} hex digits")
    return found[1].decode()


def parse_decimal(value: bytes) -> int:
    """A decimal attribute; MalformedError for anything else."""
    if _DECIMAL.fullmatch(value) is None:
        raise MalformedError(f"{shown(value)} is not a decimal number")
    return int(value)


def parse_override(value: bytes) -> str | None:
    """driver_override; the kernel writes `(null)` when there is none."""
    text = value.decode("utf-8", "replace").rstrip("\n")
    return None if text in ("", "(null)") else text


def shown(value: bytes) -> str:
    """The start of a wrong value, for a message."""
    return repr(value[:_SHOWN]) + (f" … ({len(value)} bytes)" if len(value) > _SHOWN else "")


def list_addresses(host: Host) -> list[str]:
    """Addresses of all PCI functions. Raises OSError when the bus cannot be listed, or lists none.

    Every host with accelerators has PCI functions. An empty or missing bus is a /sys that is not the host's, and taking
    it for the host's would mean that every device is gone.
    """
    found = [name for name in host.list(DEVICES) if is_address(name)]
    if not found:
        raise OSError(errno.ENODEV, "no device at all is listed, so this is not the host's /sys", DEVICES)
    return found


def read_device(host: Host, address: str) -> PCIDevice:
    """Read one function, its serial number left out.

    Raises DeviceGoneError or DeviceUnreadableError; may hang as reads of a broken device do.
    """
    reader = _Reader(host, address)
    try:
        return reader.read()
    except DeviceUnreadableError:
        if not reader.is_there():
            raise DeviceGoneError(address) from None
        raise


def read_serial(host: Host, device: PCIDevice) -> PCIDevice:
    """The device with its serial number, which takes longer to read than all the rest."""
    return _Reader(host, device.address).add_serial(device)


class _Reader:
    def __init__(self, host: Host, address: str) -> None:
        self._host = host
        self._address = address
        self._directory = f"{DEVICES}/{address}"
        self._faults: dict[str, str] = {}
        self._names: frozenset[str] = frozenset()

    def is_there(self) -> bool:
        """Whether the function's directory still leads somewhere."""
        try:
            self._host.resolve(self._directory)
        except OSError as error:
            return error.errno not in _GONE
        return True

    def read(self) -> PCIDevice:
        if not self.is_there():
            raise DeviceGoneError(self._address)
        self._names = self._listed("")
        vendor, device, class_code = self._id("vendor", 4), self._id("device", 4), self._id("class", 6)
        total_vfs = self._optional_decimal("sriov_totalvfs")
        return PCIDevice(
            address=self._address,
            vendor=vendor,
            device=device,
            class_code=class_code,
            subsystem=self._subsystem(),
            modalias=self._modalias(),
            driver=self._driver(),
            driver_override=self._override(),
            iommu_group=self._iommu_group(),
            numa_node=self._numa_node(),
            pcie_root=self._pcie_root(),
            physical_function=self._physical_function(),
            total_vfs=total_vfs,
            num_vfs=self._num_vfs(),
            virtual_functions=self._virtual_functions(),
            first_vf_offset=self._optional_decimal("sriov_offset") if total_vfs else None,
            vf_stride=self._optional_decimal("sriov_stride") if total_vfs else None,
            autoprobe=self._autoprobe(),
            boot_vga=self._boot_vga(class_code),
            vfio_device=self._vfio_device(),
            faults=self._faults,
        )

    def add_serial(self, device: PCIDevice) -> PCIDevice:
        self._names = frozenset({"config", "vpd"})
        serial = serial_number(lambda: self._optional("config"), lambda: self._optional("vpd"))
        return replace(device, serial=serial, faults=device.faults | self._faults)

    def _id(self, name: str, digits: int) -> str:
        try:
            return parse_hex(self._host.read(f"{self._directory}/{name}"), digits)
        except (OSError, MalformedError) as error:
            raise DeviceUnreadableError(f"{name}: {_why(error)}") from error

    def _link(self, name: str) -> str | None:
        """Last part of a link's target, None without the link; one that cannot be read makes the device unreadable."""
        path = f"{self._directory}/{name}"
        try:
            return self._host.read_link(path).rpartition("/")[2]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DeviceUnreadableError(f"{name}: {_why(error)}") from error

    def _driver(self) -> str | None:
        driver = self._link("driver")
        if driver is not None and _DRIVER.fullmatch(driver) is None:
            raise DeviceUnreadableError(f"driver: {driver[:_SHOWN]!r} is no driver name")
        return driver

    def _iommu_group(self) -> int | None:
        group = self._link("iommu_group")
        if group is None:
            return None
        if not group.isdecimal() or len(group) > 9:
            raise DeviceUnreadableError(f"iommu_group: {group[:_SHOWN]!r} is no group number")
        return int(group)

    def _override(self) -> str | None:
        try:
            return parse_override(self._host.read(f"{self._directory}/driver_override"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DeviceUnreadableError(f"driver_override: {_why(error)}") from error

    def _physical_function(self) -> str | None:
        if "physfn" not in self._names:
            return None
        owner = self._link("physfn")
        if owner is None or not is_address(owner):
            raise DeviceUnreadableError(f"physfn: {owner!r} is no PCI address")
        return owner

    def _listed(self, below: str) -> frozenset[str]:
        try:
            return frozenset(self._host.list(self._directory + below))
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise DeviceUnreadableError(f"{below or 'directory'}: {_why(error)}") from error

    def _optional(self, name: str) -> bytes | None:
        """An attribute that not every function has; None also when it fails, which is then a fault."""
        if name not in self._names:
            return None
        try:
            return self._host.read(f"{self._directory}/{name}")
        except FileNotFoundError:
            return None
        except OSError as error:
            self._faults[name] = _why(error)
            return None

    def _optional_decimal(self, name: str) -> int | None:
        value = self._optional(name)
        if value is None:
            return None
        try:
            return parse_decimal(value)
        except MalformedError as error:
            self._faults[name] = str(error)
            return None

    def _optional_id(self, name: str) -> str | None:
        value = self._optional(name)
        if value is None:
            return None
        try:
            return parse_hex(value, 4)
        except MalformedError as error:
            self._faults[name] = str(error)
            return None

    def _subsystem(self) -> str | None:
        vendor, device = self._optional_id("subsystem_vendor"), self._optional_id("subsystem_device")
        return f"{vendor}:{device}" if vendor is not None and device is not None else None

    def _modalias(self) -> str:
        value = self._optional("modalias")
        if value is None:
            return ""
        if _MODALIAS.fullmatch(value) is None:
            self._faults["modalias"] = f"{shown(value)} is no PCI modalias"
            return ""
        return value.decode("ascii").rstrip("\n")

    def _numa_node(self) -> int | None:
        node = self._optional_decimal("numa_node")
        return None if node is None or node < 0 else node

    def _pcie_root(self) -> str | None:
        try:
            found = _ROOT.match(self._host.resolve(self._directory))
        except OSError as error:
            self._faults["path"] = _why(error)
            return None
        return found[1] if found else None

    def _num_vfs(self) -> int | None:
        if "sriov_totalvfs" not in self._names:
            return 0
        number = self._optional_decimal("sriov_numvfs")
        return None if number is None or number < 0 else number

    def _autoprobe(self) -> bool | None:
        value = self._optional_decimal("sriov_drivers_autoprobe")
        return None if value is None else value != 0

    def _virtual_functions(self) -> tuple[str, ...]:
        names = self._names
        links = sorted((name for name in names if _FUNCTION.fullmatch(name)), key=lambda name: int(name[6:]))
        found = []
        for name in links:
            try:
                target = self._host.read_link(f"{self._directory}/{name}").rpartition("/")[2]
            except OSError as error:
                if error.errno not in _GONE:
                    self._faults[name] = _why(error)
                continue
            if is_address(target):
                found.append(target)
        return tuple(found)

    def _boot_vga(self, class_code: str) -> bool | None:
        value = self._optional("boot_vga")
        if value is None:
            return None if "boot_vga" in self._faults and class_code.startswith("03") else False
        if value.strip() not in (b"0", b"1"):
            self._faults["boot_vga"] = f"{shown(value)} is neither 0 nor 1"
            return None
        return value.strip() == b"1"

    def _vfio_device(self) -> str | None:
        if "vfio-dev" not in self._names:
            return None
        return next((name for name in sorted(self._listed("/vfio-dev")) if _VFIO_DEVICE.fullmatch(name)), None)


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror or error}"
    return str(error)
