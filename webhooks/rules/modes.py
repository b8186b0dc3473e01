"""Modes that a card cannot have, as far as the catalogue knows the card."""

from collections.abc import Callable, Iterator
from typing import Final

from crds.catalogue import Catalogue, Product
from crds.models.device_match import DeviceMatch, Function
from crds.models.modes import Mode
from crds.models.node_policy import DeviceRule
from crds.models.quantity import parse_quantity
from crds.near_matches import did_you_mean
from webhooks.rules.hardware import device_ids, may_be, meant
from webhooks.rules.pointers import EACH
from webhooks.rules.quantities import amounts_below_one
from webhooks.rules.rule import Fault, rule
from webhooks.rules.subject import Subject
from webhooks.rules.view import View
from webhooks.rules.violation import Severity

_STEP: Final = 128 * 2**20
"""Memory of soft slices comes in steps of 128Mi on every card."""

_SOFT: Final = "softVNPU: {library: {name: vcann-rt, version: 1.2.0}}"


def _cannot(subject: Subject, view: View, mode: Mode, what: str, can: Callable[[Product], bool]) -> Iterator[Fault]:
    """Rules of the mode that mean cards that cannot have it: an error where that is sure, else a warning."""
    for at, found in subject.models(DeviceRule, "spec", "devices", EACH):
        if found.mode is not mode:
            continue
        able = [name for name, product in view.catalogue.products.items() if can(product)]
        fix = f"the catalogue's products that have: {', '.join(able)}"
        meaning = meant(found.match, view.catalogue)
        unable = [product for product in meaning.products if not can(product)]
        if meaning.places:
            for product in unable:
                place = f"{at}/match/products/{meaning.places[product.name]}"
                yield Fault(place, f"{product.name} has no {what}", fix)
        elif meaning.only and len(unable) == len(meaning.products):
            names = ", ".join(product.name for product in unable)
            yield Fault(f"{at}/mode", f"the devices that the rule means are {names}: no {what}", fix, about=names)
        elif meaning.products and len(unable) == len(meaning.products):
            told = f"none of the products that the rule can mean has {what}"
            yield Fault(f"{at}/mode", told, fix, Severity.WARNING)


@rule(
    "NPF-NP-104",
    kinds=("NPUNodePolicy",),
    title="soft slices are asked of cards that have them",
    reason="""A card that the catalogue knows to have no soft slices would be taken from everybody else and offered to
    nobody.""",
    good=(f"devices: [{{name: rule, match: {{products: [Ascend-910B4]}}, mode: SoftVNPU, {_SOFT}}}]",),
    bad=(
        f"devices: [{{name: rule, match: {{products: [RBLN-CA25]}}, mode: SoftVNPU, {_SOFT}}}]",
        f"devices: [{{name: rule, match: {{vendors: ['1eff'], devices: ['1250']}}, mode: SoftVNPU, {_SOFT}}}]",
        f"devices: [{{name: rule, match: {{vendors: ['1eff']}}, mode: SoftVNPU, {_SOFT}}}]",
    ),
)
def soft_slices(subject: Subject, view: View) -> Iterator[Fault]:
    yield from _cannot(subject, view, Mode.SOFT_VNPU, "soft slices", lambda product: product.soft is not None)


@rule(
    "NPF-NP-105",
    kinds=("NPUNodePolicy",),
    title="partitions are asked of cards that have them",
    reason="""A card that the catalogue knows to have no partitions would be taken from everybody else and offered to
    nobody.""",
    good=("devices: [{name: rule, match: {products: [Ascend-310P3]}, mode: HardVNPU}]",),
    bad=("devices: [{name: rule, match: {products: [L40S]}, mode: HardVNPU}]",),
)
def partitions(subject: Subject, view: View) -> Iterator[Fault]:
    yield from _cannot(subject, view, Mode.HARD_VNPU, "partitions", lambda product: product.hard is not None)


@rule(
    "NPF-NP-102",
    kinds=("NPUNodePolicy",),
    title="templates are partitions that the cards have",
    reason="""A template that no card of the rule has is never offered. Names are those of the vendor's tool, and differ
    by chip.""",
    good=("devices: [{name: a, match: {products: [Ascend-310P3]}, mode: HardVNPU, hardVNPU: {templates: [vir04]}}]",),
    bad=("devices: [{name: a, match: {products: [Ascend-310P3]}, mode: HardVNPU, hardVNPU: {templates: [vir03]}}]",),
)
def unknown_templates(subject: Subject, view: View) -> Iterator[Fault]:
    for at, found, products, only in _with_templates(subject, view.catalogue):
        known = {template.name for product in products if product.hard for template in product.hard.templates}
        for index, name in enumerate(found.hard_vnpu.templates if found.hard_vnpu else ()):
            if name not in known:
                near = did_you_mean(name, sorted(known)).removeprefix("; ")
                fix = near or f"there are {', '.join(sorted(known))}"
                severity = None if only else Severity.WARNING
                twins = [product.name for product in products if product.hard and name in product.hard.twin_templates]
                if twins:
                    message = f'"{name}" is a template of another chip with the PCI ids of {twins[0]}'
                    fix = "it is taken when the card on the host has it"
                    yield Fault(f"{at}/hardVNPU/templates/{index}", message, fix, Severity.WARNING)
                    continue
                whose = ", ".join(product.name for product in products if product.hard)
                yield Fault(f"{at}/hardVNPU/templates/{index}", f'unknown template "{name}" of {whose}', fix, severity)


@rule(
    "NPF-NP-106",
    kinds=("NPUNodePolicy",),
    title="every product of a rule has one of its templates",
    reason="""A card that has none of the templates that are offered would be taken from everybody else and offered to
    nobody.""",
    good=(
        "devices: [{name: a, match: {products: [Ascend-310P3, Ascend-910B4]}, mode: HardVNPU, "
        "hardVNPU: {templates: [vir01, vir10_3c_16g]}}]",
    ),
    bad=(
        "devices: [{name: a, match: {products: [Ascend-310P3, Ascend-910B4]}, mode: HardVNPU, "
        "hardVNPU: {templates: [vir01, vir02]}}]",
    ),
)
def products_without_template(subject: Subject, view: View) -> Iterator[Fault]:
    for at, found, products, only in _with_templates(subject, view.catalogue):
        asked = set(found.hard_vnpu.templates if found.hard_vnpu else ())
        known = {template.name for product in products if product.hard for template in product.hard.templates}
        for product in products:
            own = {template.name for template in product.hard.templates} if product.hard else set()
            twins = set(product.hard.twin_templates) if product.hard else set()
            # With no template that anybody knows, the templates are what is wrong.
            if own and asked & known and not asked & (own | twins) and only:
                fix = f"it has {', '.join(sorted(own))}; name one of them, or give it a rule of its own"
                message, about = f"{product.name} has none of these templates", [product.name, sorted(asked)]
                yield Fault(f"{at}/hardVNPU/templates", message, fix, about=about)


def _with_templates(
    subject: Subject, catalogue: Catalogue
) -> Iterator[tuple[str, DeviceRule, tuple[Product, ...], bool]]:
    """Rules that name templates, with the products that they can mean, when one of those has partitions at all."""
    for at, found in subject.models(DeviceRule, "spec", "devices", EACH):
        if found.mode is Mode.HARD_VNPU and found.hard_vnpu is not None and found.hard_vnpu.templates:
            meaning = meant(found.match, catalogue)
            if any(product.hard is not None for product in meaning.products):
                yield at, found, meaning.products, meaning.only


@rule(
    "NPF-NP-107",
    kinds=("NPUNodePolicy",),
    title="the memory reserve leaves memory for slices",
    reason="""What the reserve leaves of a card is handed out in steps of 128Mi: with less than one step left the card
    is taken from everybody else and offered to nobody.""",
    good=(
        "devices: [{name: a, match: {products: [Ascend-310P3]}, mode: SoftVNPU, "
        "softVNPU: {library: {name: vcann-rt, version: 1.2.0}, memoryReserve: 2Gi}}]",
    ),
    bad=(
        "devices: [{name: a, match: {products: [Ascend-310P3]}, mode: SoftVNPU, "
        "softVNPU: {library: {name: vcann-rt, version: 1.2.0}, memoryReserve: 24Gi}}]",
    ),
)
def reserve_takes_all(subject: Subject, view: View) -> Iterator[Fault]:
    for at, found in subject.models(DeviceRule, "spec", "devices", EACH):
        if found.mode is not Mode.SOFT_VNPU or found.soft_vnpu is None:
            continue
        reserve = found.soft_vnpu.memory_reserve
        meaning = meant(found.match, view.catalogue)
        for product in meaning.products if meaning.only else ():
            if product.memory is not None and parse_quantity(product.memory) - parse_quantity(reserve) < _STEP:
                message = f"{reserve} leaves nothing of the {product.memory} of {product.name}"
                fix, excess = "reserve at least 128Mi less than the card has", int(parse_quantity(reserve))
                yield Fault(f"{at}/softVNPU/memoryReserve", message, fix, about=product.name, excess=excess)
                break


@rule(
    "NPF-NP-108",
    kinds=("NPUNodePolicy",),
    title="no more virtual functions than the card makes",
    reason="""The kernel refuses a number of virtual functions above what the card makes, and the device would stay
    Failed. It is an error where the number is sure, and a warning where it may depend on the driver.""",
    good=("devices: [{name: a, match: {products: [L40S]}, mode: Passthrough, passthrough: {virtualFunctions: 16}}]",),
    bad=("devices: [{name: a, match: {products: [L40S]}, mode: Passthrough, passthrough: {virtualFunctions: 17}}]",),
)
def too_many_functions(subject: Subject, view: View) -> Iterator[Fault]:
    for at, found in subject.models(DeviceRule, "spec", "devices", EACH):
        asked = found.passthrough.virtual_functions if found.passthrough is not None else None
        meaning = meant(found.match, view.catalogue)
        for product in meaning.products if meaning.only and asked is not None else ():
            most = product.virtual_functions
            seen, place = product.virtual_functions_seen, f"{at}/passthrough/virtualFunctions"
            if most is not None and asked is not None and asked > most:
                message, fix = (
                    f"{product.name} makes at most {most} virtual functions, not {asked}",
                    f"the nearest is {most}",
                )
                yield Fault(place, message, fix, about=product.name, excess=asked - most)
                break
            if most is None and seen is not None and asked is not None and asked > seen:
                message = f"{asked} virtual functions are asked of {product.name}, of which {seen} are known"
                fix = "it is made when the card on the host makes as many"
                yield Fault(place, message, fix, Severity.WARNING)
                break


@rule(
    "NPF-NP-109",
    kinds=("NPUNodePolicy",),
    title="the catalogue knows vGPU profiles of cards in mode VGPU",
    severity=Severity.WARNING,
    reason="""A layout of profiles that the catalogue does not know is taken from the host as it is: nothing can be said
    about it beforehand. For a card that makes no vGPUs at all the rule will never be ready.""",
    good=("devices: [{name: a, match: {products: [L40S]}, mode: VGPU, vgpu: {profileMapRef: {name: map}}}]",),
    bad=("devices: [{name: a, match: {products: [RBLN-CA25]}, mode: VGPU, vgpu: {profileMapRef: {name: map}}}]",),
)
def no_profiles(subject: Subject, view: View) -> Iterator[Fault]:
    for at, found in subject.models(DeviceRule, "spec", "devices", EACH):
        if found.mode is Mode.VGPU:
            for index, name in enumerate(found.match.products):
                product = view.catalogue.products.get(name)
                if product is not None and not product.profiles:
                    yield Fault(f"{at}/match/products/{index}", f"the catalogue knows no vGPU profile of {name}")


@rule(
    "NPF-NP-110",
    kinds=("NPUNodePolicy",),
    title="the criteria of a match agree with each other",
    severity=Severity.WARNING,
    reason="""All criteria must hold: a product beside the vendor of another, or beside functions that it does not have,
    matches no device.""",
    good=("devices: [{name: a, match: {products: [RBLN-CA25], vendors: ['1eff']}, mode: Container}]",),
    bad=(
        "devices: [{name: a, match: {products: [RBLN-CA25], vendors: ['10de']}, mode: Container}]",
        "devices: [{name: a, match: {products: [RBLN-CR13], function: Virtual}, mode: Container}]",
    ),
)
def of_policies_at_odds(subject: Subject, view: View) -> Iterator[Fault]:
    yield from _at_odds(subject, view, "devices")


@rule(
    "NPF-PM-110",
    kinds=("VGPUProfileMap",),
    title="the criteria of a match in a profile map agree with each other",
    severity=Severity.WARNING,
    reason="All criteria must hold: a product beside the vendor of another matches no card.",
    good=("gpus: [{match: {products: [L40S], vendors: ['10de']}, layout: [{profile: L40S-24Q, count: 2}]}]",),
    bad=("gpus: [{match: {products: [L40S], vendors: ['1eff']}, layout: [{profile: L40S-24Q, count: 2}]}]",),
)
def of_maps_at_odds(subject: Subject, view: View) -> Iterator[Fault]:
    yield from _at_odds(subject, view, "gpus")


def _at_odds(subject: Subject, view: View, holder: str) -> Iterator[Fault]:
    for at, match in subject.models(DeviceMatch, "spec", holder, EACH, "match"):
        for index, name in enumerate(match.products):
            product = view.catalogue.products.get(name)
            if product is not None and not may_be(match, product):
                yield _odds(at, index, match, product)


def _odds(at: str, index: int, match: DeviceMatch, product: Product) -> Fault:
    """Which criterion is at odds with the product: the function alone, or ids."""
    fix, kind = "all criteria must hold", match.function.lower()
    if not device_ids(match, product):
        return Fault(f"{at}/function", f"the catalogue knows no {kind} function of {product.name}", fix)
    if may_be(match.model_copy(update={"function": Function.ANY}), product):
        return Fault(f"{at}/function", f"these devices are no ids of a {kind} function of {product.name}", fix)
    only = DeviceMatch.model_construct(products=match.products)
    given = [
        field
        for field in ("vendors", "devices", "subsystems")
        if not may_be(only.model_copy(update={field: getattr(match, field)}), product)
    ]
    return Fault(f"{at}/products/{index}", f"{product.name} is never a device with these {', '.join(given)}", fix)


@rule(
    "NPF-NP-114",
    kinds=("NPUNodePolicy",),
    title="the memory reserve of a policy is at least one byte",
    reason="""The suffix m is a thousandth: 96m of memory is a tenth of a byte. Mi is what is meant.""",
    good=(
        "devices: [{name: a, match: {products: [Ascend-310P3]}, mode: SoftVNPU, "
        "softVNPU: {library: {name: vcann-rt, version: 1.2.0}, memoryReserve: 512Mi}}]",
    ),
    bad=(
        "devices: [{name: a, match: {products: [Ascend-310P3]}, mode: SoftVNPU, "
        "softVNPU: {library: {name: vcann-rt, version: 1.2.0}, memoryReserve: 512m}}]",
    ),
)
def reserve_below_a_byte(subject: Subject, _: View) -> Iterator[Fault]:
    yield from amounts_below_one(subject, ("spec", "devices", EACH, "softVNPU", "memoryReserve"))
