"""The catalogue tells products apart by ids, and refuses files that leave a device in doubt."""

import textwrap

import pytest

from crds.catalogue import Catalogue, CatalogueError, load_catalogue
from crds.catalogue.resource_names import slug
from crds.models.quantity import parse_quantity

CATALOGUE = load_catalogue()


@pytest.mark.parametrize(
    ("ids", "virtual", "name"),
    [
        (("1eff", "2130"), False, "RBLN-CR13"),
        (("1eff", "1220"), False, "RBLN-CA22"),
        (("1eff", "1250"), False, "RBLN-CA25"),
        (("1eff", "1251"), True, "RBLN-CA25"),
        (("1eff", "1121"), True, "RBLN-CA12"),
        (("1eff", "2031"), True, "RBLN-CR03"),
        (("10de", "26b9"), False, "L40S"),
        (("10de", "26b9"), True, "L40S"),
        (("8086", "56c0"), False, "FLEX_170"),
        (("8086", "56c0"), True, "FLEX_170"),
        (("10de", "20f1", "10de:145f"), False, "A100_PCIE_40GB"),
        (("19e5", "d500", "0200:0110"), False, "Ascend-310P3"),
        (("19e5", "d802", "19e5:3002"), False, "Ascend-910B4"),
    ],
)
def test_a_device_is_found_by_its_ids(ids: tuple[str, ...], virtual: bool, name: str) -> None:
    found = CATALOGUE.product(*ids, virtual=virtual)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("ids", "virtual"),
    [
        (("1eff", "1250"), True),
        (("1eff", "1251"), False),
        (("10de", "1250"), False),
        (("1EFF", "1250"), False),
        (("10de", "20b7"), True),
        (("19e5", "d500"), False),
        (("19e5", "d802", "19e5:ffff"), False),
        (("ffff", "ffff"), False),
        (("", ""), False),
    ],
)
def test_a_device_with_other_ids_has_no_product(ids: tuple[str, ...], virtual: bool) -> None:
    assert CATALOGUE.product(*ids, virtual=virtual) is None


def test_every_product_is_found_by_each_of_its_ids_and_by_no_other_products() -> None:
    for product in CATALOGUE.products.values():
        for ids, virtual in ((product.physical, False), (product.virtual, True)):
            for device in ids:
                for subsystem in product.subsystems or (None, "1234:5678"):
                    assert CATALOGUE.product(product.vendor.id, device, subsystem, virtual=virtual) == product


def test_every_entry_says_where_it_is_from() -> None:
    told = {product.name: product.source for product in CATALOGUE.products.values()}
    told |= {vendor.name: vendor.source for vendor in CATALOGUE.vendors.values()}
    for name, sources in told.items():
        assert sources, name
        assert all(len(source) > 10 for source in sources), name


def test_vgpu_profiles_are_as_the_vendor_table_says() -> None:
    table = {"1Q": (1, 48), "2Q": (2, 24), "4Q": (4, 12), "6Q": (6, 8), "8Q": (8, 6), "12Q": (12, 4), "24Q": (24, 2)}
    table["48Q"] = (48, 1)
    card = CATALOGUE.products["L40S"]
    assert {p.name: (p.frame_buffer_gib, p.maximum) for p in card.profiles} == {
        f"L40S-{name}": row for name, row in table.items()
    }
    assert card.virtual_functions == 16
    found = card.profile("L40S-24Q")
    assert found is not None
    assert found.frame_buffer_gib == 24
    assert card.profile("L40S-3Q") is None


def test_profiles_fit_on_their_card_and_are_on_no_other() -> None:
    seen: dict[str, str] = {}
    for product in CATALOGUE.products.values():
        for profile in product.profiles:
            assert seen.setdefault(profile.name, product.name) == product.name
            if product.frame_buffer_gb is not None:
                assert profile.frame_buffer_gib * (profile.maximum or 1) <= product.frame_buffer_gb
    assert {"A40-24Q", "A40-48Q", "A30-24C", "A10-24Q", "T4-16Q", "T4-4C"} <= seen.keys()


def test_templates_fit_on_their_card() -> None:
    for product in CATALOGUE.products.values():
        if product.hard is None:
            continue
        assert product.memory is not None
        assert parse_quantity(product.hard.allocatable_memory) <= parse_quantity(product.memory)
        for template in product.hard.templates:
            assert template.ai_cores <= product.hard.ai_cores
            assert template.ai_cpus <= product.hard.ai_cpus
            assert parse_quantity(template.memory) <= parse_quantity(product.hard.allocatable_memory)
    templates = CATALOGUE.products["Ascend-910B4"].hard
    assert templates is not None
    assert {t.name: (t.memory, t.ai_cores, t.ai_cpus) for t in templates.templates} == {
        "vir05_1c_8g": ("8Gi", 5, 1),
        "vir10_3c_16g": ("16Gi", 10, 3),
    }


def test_nvidia_products_are_named_by_the_model_in_brackets() -> None:
    for product in CATALOGUE.products.values():
        if product.vendor.id == "10de":
            assert product.name == slug(product.pci_name.partition("[")[2])


def test_device_nodes_are_the_vendors() -> None:
    assert CATALOGUE.products["RBLN-CA25"].device_nodes == ("/dev/rbln[0-9]*",)
    assert CATALOGUE.vendors["1eff"].sysfs_class == "rebellions"


GOOD = """
id: "1eff"
name: Somebody
source: [a vendor document]
products:
- {name: A, physical: ["0001"], source: [a vendor document]}
"""


def refused(**files: str) -> str:
    with pytest.raises(CatalogueError) as caught:
        Catalogue({f"{name}.yaml": textwrap.dedent(text) for name, text in files.items()})
    return str(caught.value)


def test_a_good_file_is_read_and_its_vendor_kept() -> None:
    assert Catalogue({"a.yaml": GOOD}).products["A"].vendor.name == "Somebody"
    assert Catalogue({}).product("1eff", "0001") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('["0001"]', "[0001]"), "a.yaml: products[0].physical[0]: Input should be a valid string"),
        (('["0001"]', '["1"]'), "a.yaml: products[0].physical[0]: String should match"),
        (('physical: ["0001"], ', ""), "a.yaml: products[0]: a product needs physical or virtual"),
        ((", source: [a vendor document]}", "}"), "a.yaml: products[0].source: Field required"),
        (("source: [a vendor document]}", "source: []}"), "a.yaml: products[0].source: Tuple should have at least 1"),
        (("{name: A", "{name: A, colour: red"), "a.yaml: products[0].colour: Extra inputs"),
        (('"1eff"', "1eff2"), "a.yaml: id: String should"),
        (("name: Somebody", "name: Somebody\nname: Other"), "a.yaml:4:1: the key 'name' is there twice"),
        (("products:", "other:"), "a.yaml: products: Field required"),
    ],
)
def test_a_faulty_file_is_named_with_path_and_fault(change: tuple[str, str], message: str) -> None:
    assert message in refused(a=GOOD.replace(*change))


@pytest.mark.parametrize("text", ["", "[]", "just words", "---\na: 1\n---\nb: 2"])
def test_a_file_of_another_shape_is_refused(text: str) -> None:
    assert refused(a=text).startswith("a.yaml: ")


def test_faults_of_all_files_are_told_at_once() -> None:
    assert [line.partition(":")[0] for line in refused(a="[", b="", c=GOOD.replace("0001", "1")).splitlines()] == [
        "a.yaml", "b.yaml", "c.yaml",
    ]  # fmt: skip


def test_twins_are_refused() -> None:
    other = GOOD.replace("1eff", "10de")
    assert refused(a=GOOD, b=GOOD.replace("{name: A", "{name: B")).splitlines() == [
        "b.yaml: id: vendor 1eff is in a.yaml already",
        "b.yaml: products[0].physical: 1eff:0001 is A already",
    ]
    assert (
        refused(a=GOOD, b=other.replace("{name: A", "{name: a")) == "b.yaml: products[0].name: a is in a.yaml already"
    )


def test_two_products_of_one_id_need_different_subsystems() -> None:
    entry = '- {name: B, physical: ["0001"], subsystems: ["aaaa:0001"], source: [a vendor document]}\n'
    both = Catalogue({"a.yaml": GOOD + entry})
    named = {sub: both.product("1eff", "0001", sub) for sub in ("aaaa:0001", "aaaa:0002", None)}
    assert {sub: product.name if product else None for sub, product in named.items()} == {
        "aaaa:0001": "B",
        "aaaa:0002": "A",
        None: "A",
    }
    assert "subsystem aaaa:0001 is B already" in refused(a=GOOD + entry + entry.replace("name: B", "name: C"))
