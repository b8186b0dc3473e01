"""Resource names of whole cards, as NVIDIA's device plugin for KubeVirt makes them.

Rule: cozystack, GPU guide, and NVIDIA kubevirt-gpu-device-plugin: the name in the PCI ID database in upper case, `/`,
`.` and white space become `_`, what is neither letter nor digit goes. A plugin that carries another snapshot of the
database may publish another name.
"""

from crds.catalogue.product import Product


def slug(pci_name: str) -> str:
    """E.g. ``TU104GL_TESLA_T4`` of ``TU104GL [Tesla T4]``."""
    spaced = "".join("_" if char in "/." or char.isspace() else char for char in pci_name.upper())
    return "".join(char for char in spaced if char == "_" or (char.isascii() and char.isalnum()))


def whole_card_resource(product: Product) -> str | None:
    """E.g. ``nvidia.com/TU104GL_TESLA_T4``; None where no name is known, or the vendor has no such plugin."""
    domains = product.vendor.resource_domains
    if product.vendor.id != "10de" or not product.pci_name or not domains:
        return None
    return f"{domains[0]}/{slug(product.pci_name)}"
