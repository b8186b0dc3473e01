"""Which PCI functions are accelerators, and by what names else they are known: nodes, and resources of others."""

from collections.abc import Callable
from typing import Final

from crds.catalogue import Catalogue, Product
from node_host.pci.device import PCIDevice

_PROCESSING_ACCELERATOR: Final = "12"
_DISPLAY: Final = ("0300", "0302", "0380")


def product_of(catalogue: Catalogue, device: PCIDevice) -> Product | None:
    """The product with the device's ids."""
    return catalogue.product(device.vendor, device.device, device.subsystem, virtual=device.is_virtual)


def is_accelerator(catalogue: Catalogue) -> Callable[[PCIDevice], bool]:
    """Products of the catalogue, processing accelerators, and display controllers of the catalogue's vendors."""

    def judge(device: PCIDevice) -> bool:
        return (
            product_of(catalogue, device) is not None
            or device.class_code.startswith(_PROCESSING_ACCELERATOR)
            or (device.class_code.startswith(_DISPLAY) and device.vendor in catalogue.vendors)
        )

    return judge


def node_patterns(catalogue: Catalogue) -> Callable[[PCIDevice], tuple[str, ...]]:
    """Globs of the nodes of a device and of its partitions that the vendor's driver makes."""
    judge = is_accelerator(catalogue)

    def patterns(device: PCIDevice) -> tuple[str, ...]:
        vendor = catalogue.vendors.get(device.vendor)
        if vendor is None or not judge(device):
            return ()
        # Nodes that all devices share do not count: whoever only watches the cards (an exporter, a device plugin) has
        # them open for good, and whoever computes has a node of the device or of a partition open as well.
        return (*vendor.device_nodes, *vendor.slice_nodes)

    return patterns


def vendors_of(catalogue: Catalogue) -> Callable[[str], frozenset[str]]:
    """The PCI vendors whose device plugins, or DRA drivers, name what they serve in a domain."""
    domains = {domain: vendor.id for vendor in catalogue.vendors.values() for domain in vendor.resource_domains}

    def vendors(domain: str) -> frozenset[str]:
        return frozenset(vendor for known, vendor in domains.items() if domain == known or domain.endswith(f".{known}"))

    return vendors
