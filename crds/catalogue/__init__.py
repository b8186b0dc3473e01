"""Hardware facts: which PCI ids are which product, and what a product offers.

One YAML file per vendor, each entry with its public source; what has no source stays out. Devices are told apart by
ids alone, never by names that a driver prints.
"""

from crds.catalogue.catalogue import Catalogue, CatalogueError
from crds.catalogue.loader import load_catalogue
from crds.catalogue.product import Product, Vendor

__all__ = ["Catalogue", "CatalogueError", "Product", "Vendor", "load_catalogue"]
