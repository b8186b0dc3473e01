"""Whether a device is now what it was allocated as, and through which nodes a container gets it.

The publisher makes nothing so: it looks, and says what it waits for. What is read is the host of this moment, whatever
was reported of it. Only that is read which decides, since a pod waits meanwhile.
"""

import fnmatch
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from crds.catalogue.loader import load_catalogue
from crds.catalogue.product import Vendor
from crds.device_names import NamedKind
from crds.models.modes import IOMMUBackend
from dra_publisher.offers.prerequisites import BINDER, WRITER
from node_host.boot import BootUnknownError, read_boot_id
from node_host.bounded_call import HungError
from node_host.evidence.device_nodes import read_device_nodes
from node_host.host import Host
from node_host.pci.device import DEVICES, PCIDevice, parse_hex
from node_host.pci.iommu import GROUPS
from node_host.pci.vfio_drivers import is_vfio_driver
from node_host.pci.vfio_nodes import missing_node, read_vfio_nodes
from node_host.pci.viability import obstacles
from node_host.vgpu.live import live_profile

_log = logging.getLogger(__name__)

_CONTAINER: Final = "/dev/vfio/vfio"
_IOMMUFD: Final = "/dev/iommu"
# Where drivers of accelerators put nodes that users open, for vendors of which the catalogue names none.
_USUAL: Final = ("/dev/dri/*", "/dev/accel/*", "/dev/nvidia*", "/dev/rbln*", "/dev/davinci*")


class NotRealisedError(Exception):
    """The device is not what it was allocated as; the text says what it is, and what this waits for."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a claim needs of a device. ``vendor`` and ``model`` are PCI ids, None where not known.

    ``profile`` is that of a vGPU by name, None of every other device.
    """

    address: str
    kind: NamedKind
    backend: IOMMUBackend
    vendor: str | None = None
    model: str | None = None
    profile: str | None = None


def nodes_of(host: Host, wanted: Wanted) -> tuple[str, ...]:
    """The host's nodes that a container gets, sorted. Raises NotRealisedError; may hang as reads of a device do."""
    device = _device(host, wanted.address)
    if wanted.vendor is not None and (device.vendor, device.device) != (wanted.vendor, wanted.model):
        raise NotRealisedError(
            f"{wanted.address} is a device {device.vendor}:{device.device}, not the {wanted.vendor}:{wanted.model} "
            "that was ordered"
        )
    try:
        if wanted.kind is NamedKind.VFIO:
            return tuple(sorted(_vfio(host, device, wanted.backend)))
        if wanted.kind is NamedKind.NPU:
            return tuple(sorted(_native(host, device, load_catalogue().vendors)))
        if wanted.kind is NamedKind.VGPU:
            return tuple(sorted(_vgpu(host, device, wanted)))
    except OSError as error:
        raise NotRealisedError(f"{wanted.address} cannot be looked at: {error.strerror or error}") from error
    raise NotRealisedError(f"{wanted.address}: this version gives no devices of type {wanted.kind}")


def look_at_all(host: Host, wanted: Collection[Wanted]) -> dict[Wanted, tuple[str, ...] | str]:
    """The nodes of each device, or why it cannot be given. May hang as reads of a device do."""
    found: dict[Wanted, tuple[str, ...] | str] = {}
    for one in wanted:
        try:
            found[one] = nodes_of(host, one)
        except Exception as error:
            found[one] = why_not(one, error)
    return found


def why_not(wanted: Wanted, error: Exception) -> str:
    """What is told of a look that ended so."""
    if isinstance(error, (NotRealisedError, HungError)):
        return str(error)
    _log.error("A look at %s failed", wanted.address, exc_info=error)
    return f"{wanted.address} cannot be looked at: {error}"


def may_be_used(host: Host, address: str, kind: NamedKind) -> bool:
    """Whether a container could have the device as that now. False only where its driver makes that impossible."""
    try:
        driver = _target(host, f"{host.resolve(f'{DEVICES}/{address}')}/driver")
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return driver is not None and is_vfio_driver(driver) == (kind is NamedKind.VFIO)


def _device(host: Host, address: str) -> PCIDevice:
    """What decides, and no more: of these attributes none takes the device's lock or reads from the device."""
    try:
        directory = host.resolve(f"{DEVICES}/{address}")
        group = _target(host, f"{directory}/iommu_group")
        return PCIDevice(
            address=address,
            vendor=parse_hex(host.read(f"{directory}/vendor"), 4),
            device=parse_hex(host.read(f"{directory}/device"), 4),
            class_code=parse_hex(host.read(f"{directory}/class"), 6),
            driver=_target(host, f"{directory}/driver"),
            iommu_group=None if group is None else int(group),
            vfio_device=_vfio_device(host, directory),
        )
    except FileNotFoundError:
        raise NotRealisedError(f"there is no PCI device at {address} in this boot; waits for it to come back") from None
    except (OSError, ValueError) as error:
        raise NotRealisedError(f"{address} cannot be read: {error}") from error


def _target(host: Host, path: str) -> str | None:
    """The last part of what a link names, None without the link."""
    try:
        return host.read_link(path).rpartition("/")[2]
    except FileNotFoundError:
        return None


def _vfio_device(host: Host, directory: str) -> str | None:
    try:
        names = host.list(f"{directory}/vfio-dev")
    except (FileNotFoundError, NotADirectoryError):
        return None
    return next((name for name in names if name.startswith("vfio")), None)


def _vfio(host: Host, device: PCIDevice, backend: IOMMUBackend) -> set[str]:
    if not is_vfio_driver(device.driver):
        raise NotRealisedError(
            f"{device.address} is on {device.driver or 'no driver'}, not on a VFIO driver, in this boot; "
            f"waits for {BINDER} to bind it"
        )
    _refuse_unviable(host, device)
    return _vfio_nodes(host, device, backend)


def _vgpu(host: Host, device: PCIDevice, wanted: Wanted) -> set[str]:
    """A virtual function stays on its vendor's driver, which is a VFIO driver once the function has a type."""
    if wanted.profile is None:
        raise NotRealisedError(f"{device.address}: nobody knows which vGPU profile it was allocated as")
    try:
        boot_id = read_boot_id(host)
    except BootUnknownError as error:
        raise NotRealisedError(f"{device.address}: {error}") from error
    # Type numbers go by the ids of the function's card.
    card = _device(host, _target(host, f"{host.resolve(f'{DEVICES}/{device.address}')}/physfn") or device.address)
    live = live_profile(host, device.address, f"{card.vendor}:{card.device}", boot_id)
    if live.profile != wanted.profile:
        raise NotRealisedError(
            f"{device.address} has vGPU profile {live.profile or f'none ({live.why})'}, not {wanted.profile}, "
            f"in this boot; waits for {WRITER} to set it"
        )
    return _vfio_nodes(host, device, wanted.backend)


def _vfio_nodes(host: Host, device: PCIDevice, backend: IOMMUBackend) -> set[str]:
    there = read_vfio_nodes(host)
    missing = missing_node(device, backend, there)
    if missing is not None:
        raise NotRealisedError(f"{device.address}: {missing}; waits for the kernel to make it")
    found: set[str] = set()
    group, own = f"/dev/vfio/{device.iommu_group}", f"/dev/vfio/devices/{device.vfio_device}"
    if backend is not IOMMUBackend.IOMMUFD and group in there:
        _refuse_missing(_CONTAINER, _CONTAINER in there, device.address)
        found |= {group, _CONTAINER}
    if backend is not IOMMUBackend.LEGACY and own in there:
        has_iommufd = host.exists(_IOMMUFD)
        if backend is IOMMUBackend.IOMMUFD or not found:
            _refuse_missing(_IOMMUFD, has_iommufd, device.address)
        if has_iommufd:
            found |= {own, _IOMMUFD}
    return found


def _refuse_missing(node: str, is_there: bool, address: str) -> None:
    if not is_there:
        raise NotRealisedError(f"{address}: {node} does not exist; waits for the kernel to make it")


def _refuse_unviable(host: Host, device: PCIDevice) -> None:
    """A VM gets the group as a whole: one member on a host driver, and the kernel refuses it at the VM's start."""
    members = host.list(f"{GROUPS}/{device.iommu_group}/devices") if device.iommu_group is not None else []
    if set(members) <= {device.address}:
        return
    devices = {device.address: device}
    for member in members:
        if member != device.address:
            try:
                devices[member] = _device(host, member)
            except NotRealisedError:
                continue
    found = obstacles(members, devices)
    if found:
        raise NotRealisedError(
            f"IOMMU group {device.iommu_group} of {device.address} is not viable: {'; '.join(found)}; "
            f"waits for {BINDER}"
        )


def _native(host: Host, device: PCIDevice, vendors: Mapping[str, Vendor]) -> set[str]:
    if device.driver is None or is_vfio_driver(device.driver):
        raise NotRealisedError(
            f"{device.address} is on {device.driver or 'no driver'}, not on its vendor's driver, in this boot; "
            f"waits for {BINDER} to give it back to its driver"
        )
    vendor = vendors.get(device.vendor)
    patterns = vendor.device_nodes if vendor is not None else ()
    nodes = read_device_nodes(host, device)
    own = {path for path in nodes.paths if _fits(path, patterns or _USUAL) and host.exists(path)}
    if not own:
        why = nodes.unreadable or "its driver has made no node for it"
        raise NotRealisedError(f"{device.address} on {device.driver} has no device node ({why}); waits for its driver")
    return own | _shared(host, vendor.shared_nodes if vendor is not None else ())


def _shared(host: Host, patterns: Collection[str]) -> set[str]:
    """Nodes of the driver that users of any of its devices need, as far as they are there."""
    found: set[str] = set()
    for directory in sorted({pattern.rpartition("/")[0] for pattern in patterns}):
        try:
            names = host.list(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue
        found |= {path for path in (f"{directory}/{name}" for name in names) if _fits(path, patterns)}
    return found


def _fits(path: str, patterns: Collection[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
