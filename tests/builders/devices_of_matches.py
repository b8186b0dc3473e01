"""Matches and devices that speak of the same few ids, so that most matches mean some devices and not others."""

from typing import Any

from hypothesis import strategies as st

from controllers.node_policy.plan.view import DeviceView
from crds.catalogue import Catalogue
from crds.models.device_match import DeviceMatch, Function
from tests.builders.examples import Digits

VENDORS = ("1eff", "10de", "19e5", "abcd")
DEVICES = ("1250", "1251", "1220", "26b9", "d500", "d802", "9999")
SUBSYSTEMS = ("0200:0100", "0200:0110", "19e5:3002", "ffff:0001")
CLASSES = ("120000", "1200", "030200", "0302")
PRODUCTS = ("RBLN-CA25", "RBLN-CA22", "L40S", "Ascend-310P3", "Ascend-910B4")
ADDRESSES = ("0000:23:00.0", "0000:24:00.0", "0000:24:00.1")
SERIALS = ("A", "B")
NUMA = (0, 1)
_CRITERIA: dict[str, tuple[Any, ...]] = {
    "vendors": VENDORS,
    "devices": DEVICES,
    "subsystems": SUBSYSTEMS,
    "classes": CLASSES,
    "products": PRODUCTS,
    "addresses": ADDRESSES,
    "serials": SERIALS,
    "numaNodes": NUMA,
}


def drawn() -> st.SearchStrategy[Digits]:
    """Choices for one example."""
    # Drawn as bytes: of large integers small ones are drawn most, and with them first choices only.
    return st.binary(min_size=64, max_size=64).map(lambda drawn: Digits(int.from_bytes(drawn)))


def draw_match(digits: Digits, *, frequent: int = 3) -> dict[str, Any]:
    """A match as it stands in an object; each criterion is given once in ``frequent`` times."""
    found: dict[str, Any] = {}
    for name, values in _CRITERIA.items():
        if digits.pick(range(frequent)) == 0:
            size = digits.pick((1, 1, 2, 3))
            found[name] = list(dict.fromkeys(digits.pick(values) for _ in range(size)))
    if not found:
        found["vendors"] = [digits.pick(VENDORS)]
    if "devices" in found:
        found.setdefault("vendors", [digits.pick(VENDORS)])
    if "addresses" in found and "devices" not in found:
        found.setdefault("products", [digits.pick(PRODUCTS)])
    function = digits.pick((None, None, *Function))
    return found if function is None else found | {"function": str(function)}


def model(match: dict[str, Any]) -> DeviceMatch:
    return DeviceMatch.model_validate(match)


def every_device(catalogue: Catalogue) -> list[DeviceView]:
    """A device for each combination of ids and functions, named by the catalogue as the binder names it."""
    found: list[DeviceView] = []
    for vendor in VENDORS:
        for device in DEVICES:
            for subsystem in (None, *SUBSYSTEMS):
                for function in (Function.PHYSICAL, Function.VIRTUAL):
                    product = catalogue.product(vendor, device, subsystem, virtual=function is Function.VIRTUAL)
                    name = product.name if product is not None else None
                    index = len(found)
                    found.append(
                        DeviceView(
                            address=ADDRESSES[index % len(ADDRESSES)],
                            vendor=vendor,
                            device=device,
                            subsystem=subsystem,
                            class_code=("120000", "030200", "120001")[index % 3],
                            product=name,
                            serial=(None, *SERIALS)[index // 3 % 3],
                            numa_node=(None, *NUMA)[index // 9 % 3],
                            function=function,
                            users=(),
                            vetoes=(),
                        )
                    )
    return found


def draw_wider(digits: Digits, match: dict[str, Any], share: int = 0) -> dict[str, Any]:
    """A match like another that asks for less: values are added, criteria left out; or for one share of it only."""
    found = dict(match)
    several = [name for name, values in found.items() if isinstance(values, list) and len(values) > 1]
    if several and digits.pick(range(2)) == 0:
        name = several[0]
        found[name] = [found[name][share % len(found[name])]]
    for name in list(found):
        if name != "function" and digits.pick(range(4)) == 0 and len(found) > 1:
            found.pop(name)
    if not set(found) & set(_CRITERIA) or ("devices" in found and "vendors" not in found):
        found["vendors"] = list(VENDORS)
    if "addresses" in found and not {"products", "devices"} & set(found):
        found.pop("addresses")
    if not set(found) & set(_CRITERIA):
        found["vendors"] = list(VENDORS)
    for name, values in _CRITERIA.items():
        if name in found and digits.pick(range(3)) == 0:
            found[name] = list(dict.fromkeys([*found[name], digits.pick(values)]))
    return found | ({"function": "Any"} if digits.pick(range(3)) == 0 else {})
