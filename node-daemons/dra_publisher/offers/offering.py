"""One device as it may be offered now, or why it may not: what the order wants, checked against the live host.

A device whose order the host does not show is not offered, whatever was reported of it.
"""

from collections.abc import Collection

from crds.catalogue import Catalogue
from crds.device_names import NamedKind, device_name
from crds.models.modes import IOMMUBackend, Passthrough, settings_of
from crds.models.node_state import DesiredDevice
from dra_publisher.offers.attributes import attributes_of, capacity_of, capacity_of_vgpu, vgpu_of
from dra_publisher.offers.limits import fault_of
from dra_publisher.offers.offer import Offer
from dra_publisher.offers.prerequisites import recipe
from node_host.pci.device import PCIDevice, identity_of, same_identity
from node_host.pci.vfio_drivers import is_vfio_driver
from node_host.pci.vfio_nodes import missing_node
from node_host.pci.viability import group_viability, obstacles
from node_host.selection import product_of
from node_host.view import HostView


def offer_of(
    entry: DesiredDevice,
    address: str,
    view: HostView,
    catalogue: Catalogue,
    *,
    device_nodes: Collection[str] | None = None,
    profile: str | None = None,
) -> Offer | str:
    """The device at `address` (the entry's own, or a virtual function of it) as pods may have it; else why not.

    `device_nodes` are the host's paths of the nodes that a container gets; None when they were not looked for.
    `profile` is the vGPU profile that it has now, of a virtual function that is to be a vGPU.
    """
    how = recipe(entry.mode)
    if how is None:
        return f"devices of mode {entry.mode} are not published"
    absent = view.absence(address)
    if absent is not None:
        return absent.message
    device = view.devices[address]
    fault = _not_meant(entry, device) or _not_so(how.kind, entry, device, view, device_nodes, profile)
    if fault is not None:
        return fault
    is_vgpu = how.kind is NamedKind.VGPU
    # A vGPU is a part of its card: what it is of, the card says.
    card = view.devices.get(entry.address, device) if is_vgpu else device
    product = product_of(catalogue, card)
    vgpu = vgpu_of(profile, entry.address, product) if is_vgpu and profile is not None else None
    members = view.members(address)
    offer = Offer(
        address=address,
        kind=how.kind,
        name=device_name(how.kind, address),
        driver=entry.driver_name,
        entry=entry,
        attributes=attributes_of(
            how.kind, device, product, group_viability(device.iommu_group, members, view.devices), vgpu
        ),
        capacity=capacity_of(product) if vgpu is None else capacity_of_vgpu(vgpu),
    )
    return fault_of(offer) or offer


def _not_so(
    kind: NamedKind,
    entry: DesiredDevice,
    device: PCIDevice,
    view: HostView,
    nodes: Collection[str] | None,
    profile: str | None,
) -> str | None:
    if kind is NamedKind.VFIO:
        return _not_for_vms(entry, device, view)
    if kind is NamedKind.VGPU:
        return _no_vgpu(entry, device, view, profile)
    return _not_for_containers(device, nodes)


def _no_vgpu(entry: DesiredDevice, device: PCIDevice, view: HostView, profile: str | None) -> str | None:
    """A vGPU is on its vendor's driver, which gives it to VFIO itself once it has a type."""
    if profile is None:
        return "it has no vGPU profile"
    if entry.vgpu is None or profile not in {one.profile for one in entry.vgpu.layout}:
        return f"it has vGPU profile {profile}, which the layout of its card does not ask for"
    if device.iommu_group is None:
        return "it has no IOMMU group: the host has no IOMMU for it"
    return missing_node(device, IOMMUBackend.AUTO, view.vfio_nodes)


def _not_meant(entry: DesiredDevice, device: PCIDevice) -> str | None:
    """Whether another device than the ordered one came to the address."""
    if device.address != entry.address:
        owner = device.physical_function
        return None if owner == entry.address else f"{device.address} is no virtual function of {entry.address}"
    wanted = identity_of(entry.identity.vendor, entry.identity.device, entry.identity.serial)
    return None if same_identity(device.identity, wanted) else f"it is {device.identity}, and {wanted} was ordered"


def _not_for_vms(entry: DesiredDevice, device: PCIDevice, view: HostView) -> str | None:
    if not is_vfio_driver(device.driver) and device.vfio_device is None:
        return f"it is on {device.driver or 'no driver'}, and no VM can have it so"
    if device.iommu_group is None:
        return "it has no IOMMU group: the host has no IOMMU for it"
    fault = view.groups.fault(device.iommu_group)
    if fault is not None:
        return f"its IOMMU group cannot be read: {fault}"
    in_the_way = obstacles(view.members(device.address), view.devices)
    if in_the_way:
        return f"its IOMMU group cannot go to a VM: {'; '.join(in_the_way)}"
    settings = settings_of(entry)
    assert isinstance(settings, Passthrough)
    return missing_node(device, settings.iommu, view.vfio_nodes)


def _not_for_containers(device: PCIDevice, nodes: Collection[str] | None) -> str | None:
    if device.driver is None:
        return "it is on no driver, so there is nothing that a container could open"
    if is_vfio_driver(device.driver):
        return f"it is on {device.driver}, so only a VM could open it"
    if nodes is not None and not nodes:
        return f"driver {device.driver} has made no device node for it"
    return None
