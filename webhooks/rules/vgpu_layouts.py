"""Layouts that no card can carry: unknown profiles, too many vGPUs, too much frame buffer, sizes that do not mix."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from crds.catalogue import Catalogue, Product
from crds.models.profile_map import CardLayout, MixedSizes
from crds.near_matches import did_you_mean
from webhooks.rules.hardware import meant
from webhooks.rules.pointers import EACH
from webhooks.rules.rule import Fault, rule
from webhooks.rules.subject import Subject
from webhooks.rules.vgpu_profiles import Standing, capacity, frame_buffer, is_of_card, maximum, parse_profile, standing
from webhooks.rules.view import View
from webhooks.rules.violation import Severity

_KINDS: Final = ("VGPUProfileMap",)


@dataclass(frozen=True, slots=True)
class Card:
    """One product that an entry of a map means for sure, and the entry.

    ``counts`` has how many of each profile, without those that the product cannot have: that is told already.
    """

    at: str
    entry: CardLayout
    product: Product
    counts: Counter[str]


def cards(subject: Subject, catalogue: Catalogue) -> Iterator[Card]:
    """Each product that an entry means and of which profiles or the frame buffer are known.

    Entries that may mean others, too, are left out.
    """
    everything = tuple(catalogue.products.values())
    for at, entry in subject.models(CardLayout, "spec", "gpus", EACH):
        meaning = meant(entry.match, catalogue)
        for product in meaning.products if meaning.only else ():
            if product.profiles or product.frame_buffer_gb is not None:
                counts = _counts(entry)
                for profile in [one for one in counts if standing(product, one, everything) is Standing.WRONG]:
                    del counts[profile]
                yield Card(at, entry, product, counts)


def _gpus(match: str, layout: str, more: str = "") -> str:
    return f"gpus: [{{match: {match}, layout: [{layout}]{more}}}]"


_L40S: Final = "{products: [L40S]}"
_TAKEN: Final = "it is taken when the card on the host makes as many"


@rule(
    "NPF-PM-102",
    kinds=_KINDS,
    title="profiles are profiles of the card",
    reason="""Profiles are looked up by name in what the driver offers. A name that no driver can offer for the card is
    never found, and the card would stay Failed. What the catalogue does not list and the card may offer all the same is
    a warning only (NPF-PM-109).""",
    good=(_gpus(_L40S, "{profile: L40S-24Q, count: 2}"),),
    bad=(
        _gpus(_L40S, "{profile: l40s-24Q, count: 2}"),
        _gpus(_L40S, "{profile: L40S-25Q, count: 1}"),
        _gpus("{products: [A40]}", "{profile: L40S-24Q, count: 1}"),
        _gpus("{products: [H100_PCIE]}", "{profile: L40S-24Q, count: 1}"),
    ),
)
def unknown_profiles(subject: Subject, view: View) -> Iterator[Fault]:
    everything = tuple(view.catalogue.products.values())
    for at, entry in subject.models(CardLayout, "spec", "gpus", EACH):
        meaning = meant(entry.match, view.catalogue)
        for index, item in enumerate(entry.layout if meaning.only else ()):
            for product in meaning.products:
                if standing(product, item.profile, everything) is not Standing.WRONG:
                    continue
                known = [profile.name for profile in product.profiles]
                near = did_you_mean(item.profile, known).removeprefix("; ")
                fix = near or (f"there are {', '.join(known)}" if known else "it belongs to another product")
                message, about = f'{product.name} has no profile "{item.profile}"', [product.name, item.profile]
                yield Fault(f"{at}/layout/{index}/profile", message, fix, about=about)


@rule(
    "NPF-PM-109",
    kinds=_KINDS,
    title="profiles are listed in the catalogue",
    severity=Severity.WARNING,
    reason="""The catalogue lists what public sources list. A profile that it does not list is taken when the driver on
    the host offers it; a typing error is found only there.""",
    good=(_gpus(_L40S, "{profile: L40S-24Q, count: 2}"),),
    bad=(
        _gpus(_L40S, "{profile: L40S-16Q, count: 3}"),
        _gpus(_L40S, "{profile: L40S-24X, count: 2}"),
        _gpus("{vendors: ['10de']}", "{profile: L4OS-24Q, count: 2}"),
    ),
)
def unlisted_profiles(subject: Subject, view: View) -> Iterator[Fault]:
    everything = tuple(view.catalogue.products.values())
    for at, entry in subject.models(CardLayout, "spec", "gpus", EACH):
        meaning = meant(entry.match, view.catalogue)
        if meaning.places and not meaning.only:
            continue
        known = [profile.name for product in meaning.products for profile in product.profiles]
        for index, item in enumerate(entry.layout):
            standings = {standing(product, item.profile, everything) for product in meaning.products}
            listed = Standing.KNOWN in standings or (meaning.only and Standing.WRONG in standings)
            if known and not listed:
                is_built_right = is_of_card(item.profile, meaning.products)
                near = "" if is_built_right else did_you_mean(item.profile, known).removeprefix("; ")
                fix = near or "it is taken when the driver on the host offers it"
                yield Fault(f"{at}/layout/{index}/profile", f'the catalogue has no profile "{item.profile}"', fix)


@rule(
    "NPF-PM-122",
    kinds=_KINDS,
    title="the catalogue knows vGPU profiles of the cards of a map",
    severity=Severity.WARNING,
    reason="""Nothing can be said beforehand about layouts of a card of which no profile is known; a card that makes no
    vGPUs at all will never be ready.""",
    good=(_gpus(_L40S, "{profile: L40S-24Q, count: 2}"),),
    bad=(_gpus("{products: [RBLN-CA25]}", "{profile: CA25-8Q, count: 2}"),),
)
def cards_without_profiles(subject: Subject, view: View) -> Iterator[Fault]:
    everything = tuple(view.catalogue.products.values())
    for at, entry in subject.models(CardLayout, "spec", "gpus", EACH):
        for index, name in enumerate(entry.match.products):
            product = view.catalogue.products.get(name)
            if product is None or product.profiles:
                continue
            if all(standing(product, item.profile, everything) is not Standing.WRONG for item in entry.layout):
                yield Fault(f"{at}/match/products/{index}", f"the catalogue knows no vGPU profile of {name}")


@rule(
    "NPF-PM-105",
    kinds=_KINDS,
    title="a card carries no more vGPUs of a profile than fit",
    reason="""A card takes so many vGPUs of one profile and no more: as many as its frame buffer has room for, and at
    most one for each of its virtual functions. How many functions there are may depend on the driver: a number that
    somebody only saw on a host is a warning.""",
    good=(_gpus(_L40S, "{profile: L40S-1Q, count: 16}"),),
    bad=(
        _gpus(_L40S, "{profile: L40S-24Q, count: 3}"),
        _gpus(_L40S, "{profile: L40S-1Q, count: 17}"),
        _gpus(_L40S, "{profile: L40S-24Q, count: 1}, {profile: L40S-24Q, count: 2}"),
    ),
)
def too_many_instances(subject: Subject, view: View) -> Iterator[Fault]:
    for card in cards(subject, view.catalogue):
        for profile, count in card.counts.items():
            last = max(index for index, item in enumerate(card.entry.layout) if item.profile == profile)
            place, name, about = f"{card.at}/layout/{last}/count", card.product.name, [card.product.name, profile]
            most, why = _most(card.product, profile)
            seen = card.product.virtual_functions_seen
            if most is not None and count > most:
                message = f"{name} carries at most {most} of {profile}{why}, not {count}"
                fix = f"the nearest is {most}" if most else ""
                yield Fault(place, message, fix, about=about, excess=count - most)
            elif seen is not None and count > seen:
                message = f"{count} of {profile} need as many virtual functions, and of {name} {seen} are known"
                yield Fault(place, message, _TAKEN, Severity.WARNING)


@rule(
    "NPF-PM-104",
    kinds=_KINDS,
    title="a layout fits the frame buffer of the card",
    reason="""The frame buffers of all vGPUs of a card together are no larger than the card's own: the last of them
    could not be made.""",
    good=(_gpus(_L40S, "{profile: L40S-24Q, count: 1}, {profile: L40S-12Q, count: 2}", ", mixedSizes: Allow"),),
    bad=(_gpus(_L40S, "{profile: L40S-24Q, count: 2}, {profile: L40S-12Q, count: 1}", ", mixedSizes: Allow"),),
)
def too_much_frame_buffer(subject: Subject, view: View) -> Iterator[Fault]:
    for card in cards(subject, view.catalogue):
        whole, counts = capacity(card.product), card.counts
        sizes = {profile: frame_buffer(card.product, profile) for profile in counts}
        if whole is None or None in sizes.values() or _is_told_already(card.product, counts):
            continue
        asked = sum((sizes[profile] or 0) * count for profile, count in counts.items())
        if asked > whole:
            terms = " and ".join(f"{count} of {sizes[profile]} GB" for profile, count in counts.items())
            message = f"{terms}: {asked} GB of frame buffer do not fit the {whole} GB of {card.product.name}"
            about, excess = [card.product.name], asked - whole
            yield Fault(f"{card.at}/layout", message, f"take away {excess} GB", about=about, excess=excess)


@rule(
    "NPF-PM-107",
    kinds=_KINDS,
    title="a layout has no more vGPUs than the card has virtual functions",
    reason="""Each vGPU lives on a virtual function of its own, whatever frame buffer is left. It is an error where the
    number of functions is sure, and a warning where it may depend on the driver.""",
    good=(_gpus(_L40S, "{profile: L40S-1Q, count: 8}, {profile: L40S-2Q, count: 8}", ", mixedSizes: Allow"),),
    bad=(_gpus(_L40S, "{profile: L40S-1Q, count: 9}, {profile: L40S-2Q, count: 8}", ", mixedSizes: Allow"),),
)
def more_than_functions(subject: Subject, view: View) -> Iterator[Fault]:
    for card in cards(subject, view.catalogue):
        product, counts = card.product, card.counts
        most, seen = product.virtual_functions, product.virtual_functions_seen
        asked = sum(counts.values())
        if _is_told_already(product, counts):
            continue
        if most is not None and asked > most:
            message, excess = f"{asked} vGPUs on the {most} virtual functions of {product.name}", asked - most
            fix, about = f"take away {excess}", [product.name]
            yield Fault(f"{card.at}/layout", message, fix, about=about, excess=excess)
        elif seen is not None and asked > seen >= max(counts.values(), default=0):
            message = f"{asked} vGPUs need as many virtual functions, and of {product.name} {seen} are known"
            yield Fault(f"{card.at}/layout", message, _TAKEN, Severity.WARNING)


@rule(
    "NPF-PM-106",
    kinds=_KINDS,
    title="frame buffers of several sizes are allowed where they are mixed",
    reason="""A card carries vGPUs of one frame buffer size unless its mixed-size mode is on, which `mixedSizes: Allow`
    turns on. Without it the first vGPU decides the size, and the others cannot be made. Cards of some generations have
    no such mode: sizes mixed there are a warning. MIG-backed vGPUs and time-sliced ones never share a card.""",
    good=(_gpus(_L40S, "{profile: L40S-24Q, count: 1}, {profile: L40S-12Q, count: 2}", ", mixedSizes: Allow"),),
    bad=(
        _gpus(_L40S, "{profile: L40S-24Q, count: 1}, {profile: L40S-12Q, count: 2}"),
        _gpus("{vendors: ['8086']}", "{profile: H100-1-10C, count: 1}, {profile: H100-40C, count: 1}"),
    ),
)
def mixed_sizes(subject: Subject, view: View) -> Iterator[Fault]:
    for at, entry in subject.models(CardLayout, "spec", "gpus", EACH):
        known = {profile: _size(profile, view.catalogue) for profile in _counts(entry)}
        sizes = sorted({size for size in known.values() if size is not None})
        shown = " and ".join(f"{size} GB" for size in sizes)
        backed = sorted(name for name in known if (parsed := parse_profile(name)) is not None and parsed.mig)
        sliced = sorted(name for name, size in known.items() if size is not None)
        if backed and sliced:
            message = f"{backed[0]} is MIG-backed and {sliced[0]} is not: no card carries both"
            yield Fault(f"{at}/layout", message, "give each a card of its own", about=[backed, sliced])
        elif len(sizes) > 1 and entry.mixed_sizes is not MixedSizes.ALLOW:
            message = f"vGPUs of {shown} on one card, while mixedSizes is Forbid"
            fix = "set mixedSizes to Allow, or use profiles of one size"
            yield Fault(f"{at}/layout", message, fix, about=sizes)
        elif len(sizes) > 1:
            unable = [one.name for one in meant(entry.match, view.catalogue).products if one.mixes_sizes is False]
            if unable and entry.match.products:
                message = f"vGPUs of {shown} on one card, and {unable[0]} is known to have no mixed-size mode"
                yield Fault(f"{at}/layout", message, "use profiles of one size", Severity.WARNING)


def _counts(entry: CardLayout) -> Counter[str]:
    counts: Counter[str] = Counter()
    for item in entry.layout:
        counts[item.profile] += item.count
    return counts


def _most(product: Product, profile: str) -> tuple[int | None, str]:
    """The most vGPUs of one profile, and what bounds them when that is not the frame buffer."""
    room, functions = maximum(product, profile), product.virtual_functions
    if functions is not None and (room is None or functions < room):
        return functions, f", one for each of its {functions} virtual functions"
    return room, ""


def _is_told_already(product: Product, counts: Counter[str]) -> bool:
    """Whether one profile alone is too much: that is what is wrong, not the sum."""
    return any((most := _most(product, profile)[0]) is not None and count > most for profile, count in counts.items())


def _size(profile: str, catalogue: Catalogue) -> int | None:
    for product in catalogue.products.values():
        found = product.profile(profile)
        if found is not None:
            return found.frame_buffer_gib
    parsed = parse_profile(profile)
    return parsed.size if parsed is not None and not parsed.mig else None


@rule(
    "NPF-PM-108",
    kinds=_KINDS,
    title="profiles that differ have resource names that differ",
    severity=Severity.WARNING,
    reason="""A VM asks for a resource by name and gets any vGPU of that name: with two profiles under one name nobody
    knows how large its vGPU will be.""",
    good=(
        _gpus(
            _L40S,
            "{profile: L40S-24Q, count: 1, resourceName: nvidia.com/L40S-24Q}, "
            "{profile: L40S-12Q, count: 2, resourceName: nvidia.com/L40S-12Q}",
            ", mixedSizes: Allow",
        ),
    ),
    bad=(
        _gpus(
            _L40S,
            "{profile: L40S-24Q, count: 1, resourceName: nvidia.com/L40S}, "
            "{profile: L40S-12Q, count: 2, resourceName: nvidia.com/L40S}",
            ", mixedSizes: Allow",
        ),
    ),
)
def shared_resource_names(subject: Subject, _: View) -> Iterator[Fault]:
    first: dict[str, str] = {}
    for at, entry in subject.models(CardLayout, "spec", "gpus", EACH):
        for index, item in enumerate(entry.layout):
            if item.resource_name is not None and first.setdefault(item.resource_name, item.profile) != item.profile:
                message = f"{item.resource_name} is the name of {first[item.resource_name]} already"
                yield Fault(f"{at}/layout/{index}/resourceName", message, f"give {item.profile} a name of its own")


@rule(
    "NPF-PM-111",
    kinds=_KINDS,
    title="resource names are not those of Kubernetes itself",
    reason="""Names below kubernetes.io are resources of Kubernetes, and names that begin with requests. are those of
    quotas: the kubelet takes neither from anybody else.""",
    good=(_gpus(_L40S, "{profile: L40S-24Q, count: 2, resourceName: nvidia.com/L40S-24Q}"),),
    bad=(_gpus(_L40S, "{profile: L40S-24Q, count: 2, resourceName: kubernetes.io/L40S-24Q}"),),
)
def native_resource_names(subject: Subject, _: View) -> Iterator[Fault]:
    for at, name in subject.each("spec", "gpus", EACH, "layout", EACH, "resourceName"):
        domain = name.partition("/")[0] if isinstance(name, str) else ""
        if domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or domain.startswith("requests."):
            yield Fault(at, f"the domain {domain} belongs to Kubernetes", "use the vendor's domain, e.g. nvidia.com")
