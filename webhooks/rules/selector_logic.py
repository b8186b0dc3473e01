"""What a label selector asks of one key, and what follows from that: contradictions, and selectors within others."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from crds.models.selectors import LabelSelector, SelectorOperator


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that a selector asks of the value of one key.

    ``among`` None: any value. ``there`` and ``gone``: the key must be there, must not be there.
    """

    among: frozenset[str] | None = None
    without: frozenset[str] = frozenset()
    there: bool = False
    gone: bool = False

    @property
    def impossible(self) -> bool:
        """Whether no Node can have it so."""
        return (self.there and self.gone) or (self.among is not None and not self.among - self.without)


_NOTHING: Final = Asked()


def asked(selector: LabelSelector) -> dict[str, Asked]:
    """What the selector asks, by key."""
    found: dict[str, Asked] = {}
    for key, operator, values in _requirements(selector):
        found[key] = _both(found.get(key, _NOTHING), operator, values)
    return found


def within(narrow: LabelSelector, wide: LabelSelector) -> bool:
    """Whether every Node that ``narrow`` selects is selected by ``wide``, whatever Nodes there are."""
    stated = asked(narrow)
    if all(_implies(stated.get(key, _NOTHING), operator, values) for key, operator, values in _requirements(wide)):
        return True
    return any(one.impossible for one in stated.values())


def _requirements(selector: LabelSelector) -> Iterator[tuple[str, SelectorOperator, frozenset[str]]]:
    for key, value in selector.match_labels.items():
        yield key, SelectorOperator.IN, frozenset((value,))
    for found in selector.match_expressions:
        yield found.key, found.operator, frozenset(found.values)


def _both(stated: Asked, operator: SelectorOperator, values: frozenset[str]) -> Asked:
    match operator:
        case SelectorOperator.IN:
            among = values if stated.among is None else stated.among & values
            return Asked(among, stated.without, True, stated.gone)
        case SelectorOperator.NOT_IN:
            return Asked(stated.among, stated.without | values, stated.there, stated.gone)
        case SelectorOperator.EXISTS:
            return Asked(stated.among, stated.without, True, stated.gone)
        case SelectorOperator.DOES_NOT_EXIST:
            return Asked(stated.among, stated.without, stated.there, True)


def _implies(stated: Asked, operator: SelectorOperator, values: frozenset[str]) -> bool:
    possible = None if stated.among is None else stated.among - stated.without
    match operator:
        case SelectorOperator.IN:
            return possible is not None and possible <= values
        case SelectorOperator.NOT_IN:
            return stated.gone or values <= stated.without or (possible is not None and not possible & values)
        case SelectorOperator.EXISTS:
            return stated.there
        case SelectorOperator.DOES_NOT_EXIST:
            return stated.gone
