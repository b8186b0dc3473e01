"""vGPU profiles by name: those that the catalogue knows, those that can be, and those that no card has.

Grammar of the names: NVIDIA vGPU software documentation, ``<GPU>-<GB><A|B|C|Q>`` for time-sliced vGPUs and
``<GPU>-<slices>-<GB><series>[ME]`` for MIG-backed ones; a digit after B (T4-2B4) is of the
displays. The catalogue lists what public sources list; a card may offer more, and what a driver offers is looked up on
the host. So a name is wrong only where no driver can offer it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from crds.catalogue import Product
from crds.models.quantity import parse_quantity

_NAME: Final = re.compile(
    r"(?P<gpu>[A-Z][A-Za-z0-9]*(?:-[A-Z][A-Za-z]+)?)-(?:(?P<slices>[1-9])-)?(?P<size>[1-9][0-9]{0,2})(?P<series>[ABCQ])"
    r"(?P<displays>(?<=B)[1-9])?(?P<media>ME)?"
)
_GIB: Final = 2**30


class Standing(Enum):
    """What is known of a profile on a product."""

    KNOWN = "the catalogue has it"
    POSSIBLE = "the catalogue does not have it, and the product may"
    WRONG = "the product has no such profile"


@dataclass(frozen=True, slots=True)
class ProfileName:
    """The parts of a profile's name; sizes are in GB of frame buffer."""

    gpu: str
    size: int
    mig: bool


def parse_profile(name: str) -> ProfileName | None:
    """The parts of a name, or None when it is not of the grammar."""
    found = _NAME.fullmatch(name)
    if found is None or (found["media"] and not found["slices"]):
        return None
    return ProfileName(found["gpu"], int(found["size"]), found["slices"] is not None)


def capacity(product: Product) -> int | None:
    """The frame buffer of a card in GB; None where the catalogue does not tell."""
    if product.frame_buffer_gb is not None:
        return product.frame_buffer_gb
    if product.memory is not None:
        return int(parse_quantity(product.memory) / _GIB)
    known = [profile.frame_buffer_gib * profile.maximum for profile in product.profiles if profile.maximum]
    return max(known, default=None)


def frame_buffer(product: Product, name: str) -> int | None:
    """The frame buffer of one vGPU in GB; None for what does not take a share of the whole card."""
    known = product.profile(name)
    if known is not None:
        return known.frame_buffer_gib
    parsed = parse_profile(name)
    return parsed.size if parsed is not None and not parsed.mig else None


def maximum(product: Product, name: str) -> int | None:
    """How many vGPUs of the profile fit a card that carries no others, its functions left aside; None: not known."""
    known = product.profile(name)
    if known is not None and known.maximum is not None:
        return known.maximum
    size, whole = frame_buffer(product, name), capacity(product)
    return whole // size if size and whole else None


def standing(product: Product, name: str, all_products: Iterable[Product]) -> Standing:
    """What is known of the profile on the product; POSSIBLE on a product of which no profile is known."""
    if product.profile(name) is not None:
        return Standing.KNOWN
    if any(other.profile(name) is not None for other in all_products):
        return Standing.WRONG
    if not product.profiles:
        return Standing.POSSIBLE
    parsed = parse_profile(name)
    prefixes = {found.gpu for profile in product.profiles if (found := parse_profile(profile.name))}
    if any(profile.name.casefold() == name.casefold() for profile in product.profiles):
        return Standing.WRONG
    if parsed is None:
        # Names are the driver's to give: one of another shape may be new.
        return Standing.POSSIBLE
    if parsed.gpu not in prefixes:
        return Standing.WRONG
    whole = capacity(product)
    if not parsed.mig and whole is not None and not _is_part(parsed.size, whole):
        return Standing.WRONG
    return Standing.POSSIBLE


def is_of_card(name: str, products: Iterable[Product]) -> bool:
    """Whether the name is built as the known profiles of one of the products are, so that it is no slip of the pen."""
    parsed = parse_profile(name)
    known = (parse_profile(profile.name) for product in products for profile in product.profiles)
    return parsed is not None and any(found is not None and found.gpu == parsed.gpu for found in known)


def is_impossible(name: str, products: Iterable[Product]) -> bool:
    """Whether no card has a profile of that name for sure.

    So it is with a known name in other letters, and with a name that begins with a card which cannot have it.
    """
    everything = tuple(products)
    of_kind = [
        product
        for product in everything
        for profile in product.profiles
        if profile.name.casefold() == name.casefold() or _begins_alike(name, profile.name)
    ]
    return bool(of_kind) and all(standing(product, name, everything) is Standing.WRONG for product in of_kind)


def _begins_alike(name: str, known: str) -> bool:
    parsed = parse_profile(known)
    return parsed is not None and name.casefold().startswith(f"{parsed.gpu.casefold()}-")


def _is_part(size: int, whole: int) -> bool:
    """Whether a card can be cut into equal parts of this size, rounded down: 94 GB give 47, 31, 23 …"""
    return 0 < size <= whole and whole // (whole // size) == size
