"""Looks products up by PCI ids, and refuses files that leave a device's product in doubt."""

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from crds.catalogue.product import Product, Vendor, VendorFile
from crds.models.base import faults_of
from crds.yaml_documents import YAMLError, read_documents


class CatalogueError(ValueError):
    """A file of the catalogue is wrong; one line per fault, each with file, path and fault."""


class Catalogue:
    """The products of all vendors. ``products`` and ``vendors`` are keyed by name and by PCI vendor id."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """Read the texts of vendor files, keyed by file name.

        Raises CatalogueError that names every fault of every file.
        """
        read = {name: _vendor_file(name, text) for name, text in sorted(files.items())}
        faults = [fault for _, found in read.values() for fault in found]
        vendors = {name: vendor for name, (vendor, _) in read.items() if vendor is not None}
        faults += _twins(vendors)
        if faults:
            raise CatalogueError("\n".join(faults))
        self.vendors: Mapping[str, Vendor] = {
            vendor.id: Vendor.model_validate(vendor.model_dump(exclude={"products"})) for vendor in vendors.values()
        }
        self.products: Mapping[str, Product] = {
            entry.name: Product(**entry.model_dump(), vendor=self.vendors[vendor.id])
            for vendor in vendors.values()
            for entry in vendor.products
        }
        self._by_ids: dict[tuple[str, str, bool], list[Product]] = {}
        for product in self.products.values():
            for ids, virtual in ((product.physical, False), (product.virtual, True)):
                for device in ids:
                    self._by_ids.setdefault((product.vendor.id, device, virtual), []).append(product)

    def product(
        self, vendor: str, device: str, subsystem: str | None = None, *, virtual: bool = False
    ) -> Product | None:
        """The product with these ids (4 lower-case hex digits, ``subsystem`` as ``vendor:device``), or None.

        ``virtual`` is what the host says of the function: some virtual functions carry the ids of their card.
        """
        candidates = self._by_ids.get((vendor, device, virtual), ())
        exact = next((found for found in candidates if subsystem in found.subsystems), None)
        return exact or next((found for found in candidates if not found.subsystems), None)


def _vendor_file(name: str, text: str) -> tuple[VendorFile | None, list[str]]:
    try:
        documents = read_documents(text, name)
    except YAMLError as error:
        return None, [str(error)]
    if len(documents) != 1:
        return None, [f"{name}: one document per file, not {len(documents)}"]
    try:
        return VendorFile.model_validate(documents[0].content), []
    except ValidationError as error:
        return None, [f"{name}: {path or '(top)'}: {fault}" for path, fault in faults_of(error)]


def _twins(vendors: Mapping[str, VendorFile]) -> Iterator[str]:
    """Faults: two vendors with one id, two products with one name or with ids that both claim."""
    vendor_ids: dict[str, str] = {}
    names: dict[str, str] = {}
    claims: dict[tuple[str, str, str, str | None], str] = {}
    for file, vendor in vendors.items():
        if vendor.id in vendor_ids:
            yield f"{file}: id: vendor {vendor.id} is in {vendor_ids[vendor.id]} already"
        vendor_ids.setdefault(vendor.id, file)
        for index, product in enumerate(vendor.products):
            here = f"products[{index}]"
            folded = product.name.casefold()
            if folded in names:
                yield f"{file}: {here}.name: {product.name} is in {names[folded]} already"
            names.setdefault(folded, file)
            for field in ("physical", "virtual"):
                for device in getattr(product, field):
                    for subsystem in product.subsystems or (None,):
                        claim = (vendor.id, device, field, subsystem)
                        if claim in claims:
                            yield (
                                f"{file}: {here}.{field}: {vendor.id}:{device} "
                                f"{f'subsystem {subsystem} ' if subsystem else ''}is {claims[claim]} already"
                            )
                        claims.setdefault(claim, product.name)
