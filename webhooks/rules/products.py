"""Products that the catalogue does not have: a rule that names one would silently match nothing for ever."""

import re
from collections.abc import Iterator
from typing import Final

from crds.catalogue import Catalogue
from crds.near_matches import near_matches, question
from webhooks.rules.pointers import EACH, Step
from webhooks.rules.rule import Fault, rule
from webhooks.rules.subject import Subject
from webhooks.rules.view import View

_MOST_NAMED: Final = 6
_MOST_SEARCHED: Final = 12
_REASON: Final = """A product is looked up by its PCI ids in the catalogue of this version of npufleet. A name that
is not in there matches no device, and nothing would ever say so."""


def _unknown(subject: Subject, view: View, *steps: Step) -> Iterator[Fault]:
    known = view.catalogue.products
    likes: dict[str, str] = {}
    for at, name in subject.each(*steps, "products", EACH):
        if isinstance(name, str) and name not in known:
            # A search costs half a millisecond, and an object may name a thousand of them.
            if name not in likes and len(likes) < _MOST_SEARCHED:
                likes[name] = question(products_like(name, view.catalogue)).removeprefix("; ")
            near = likes.get(name, "")
            yield Fault(at, f'unknown product "{name}"', near or "npufleet explain products lists those that are known")


def products_like(word: str, catalogue: Catalogue) -> list[str]:
    """Names of products that somebody may mean: by the title of a card, a part of a name, or looks."""
    plain = _plain(word)
    if not plain or len(word) > 256:
        return []
    titled = [
        product.name
        for product in catalogue.products.values()
        if plain in {_plain(title) for title in (*product.title.split(","), product.name)}
    ]
    near = near_matches(word, catalogue.products)
    holding = [name for name in catalogue.products if len(plain) > 2 and plain in _plain(name)]
    holding.sort(key=lambda name: near.index(name) if name in near else len(near))
    return titled or holding[:_MOST_NAMED] or near


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.casefold())


@rule(
    "NPF-NP-101",
    kinds=("NPUNodePolicy",),
    title="products of a node policy are names of the catalogue",
    reason=_REASON,
    good=("devices: [{name: rule, match: {products: [RBLN-CA25]}, mode: Container}]",),
    bad=("devices: [{name: rule, match: {products: [RBLN-CA2]}, mode: Container}]",),
)
def of_policies(subject: Subject, view: View) -> Iterator[Fault]:
    yield from _unknown(subject, view, "spec", "devices", EACH, "match")


@rule(
    "NPF-PM-101",
    kinds=("VGPUProfileMap",),
    title="products of a profile map are names of the catalogue",
    reason=_REASON,
    good=("gpus: [{match: {products: [L40S]}, layout: [{profile: L40S-24Q, count: 2}]}]",),
    bad=("gpus: [{match: {products: [L4OS]}, layout: [{profile: L40S-24Q, count: 2}]}]",),
)
def of_maps(subject: Subject, view: View) -> Iterator[Fault]:
    yield from _unknown(subject, view, "spec", "gpus", EACH, "match")


@rule(
    "NPF-VQ-101",
    kinds=("VNPUQuota",),
    title="products of a quota are names of the catalogue",
    reason=_REASON,
    good=("{match: {products: [Ascend-910B4]}, limits: {cores: 100}}",),
    bad=("{match: {products: [Ascend-910]}, limits: {cores: 100}}",),
)
def of_quotas(subject: Subject, view: View) -> Iterator[Fault]:
    yield from _unknown(subject, view, "spec", "match")
