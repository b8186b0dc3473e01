"""Resource names of whole cards are those of the device plugin, for every name that its guide and its table have."""

import pytest

from crds.catalogue import load_catalogue
from crds.catalogue.resource_names import slug, whole_card_resource

CATALOGUE = load_catalogue()


@pytest.mark.parametrize(
    ("pci_name", "expected"),
    [
        ("TU104GL [Tesla T4]", "TU104GL_TESLA_T4"),
        ("GA100GL [A30 PCIe]", "GA100GL_A30_PCIE"),
        ("AD102GL [L40S]", "AD102GL_L40S"),
        ("AD102GL [L40]", "AD102GL_L40"),
        ("AD104GL [L4]", "AD104GL_L4"),
        ("GH100 [H200 SXM 141GB]", "GH100_H200_SXM_141GB"),
        ("GA102GL [A40]", "GA102GL_A40"),
        ("GV100GL [Tesla V100S PCIe 32GB]", "GV100GL_TESLA_V100S_PCIE_32GB"),
        ("A/B.C\tD", "A_B_C_D"),
        ("A-B (C) é", "AB_C_"),
    ],
)
def test_slugs_keep_words_and_drop_marks(pci_name: str, expected: str) -> None:
    assert slug(pci_name) == expected


def test_every_card_of_the_vendor_has_a_name_of_its_own() -> None:
    cards = [product for product in CATALOGUE.products.values() if product.vendor.id == "10de"]
    names = [whole_card_resource(product) for product in cards]
    assert len(cards) > 15
    assert None not in names
    assert len(set(names)) == len(names)
    assert "nvidia.com/TU104GL_TESLA_T4" in names
    assert "nvidia.com/GA100GL_A30_PCIE" in names


def test_other_vendors_have_no_such_plugin() -> None:
    for name in ("FLEX_170", "RBLN-CA25"):
        assert whole_card_resource(CATALOGUE.products[name]) is None
