"""The Nodes of a fleet by their labels, so that a rule that asks for some need not look at all of them."""

from collections.abc import Iterator, Mapping
from typing import Final

from crds.models.selectors import LabelSelector, SelectorOperator
from webhooks.rules.view import Labels

_MOST_KEYS: Final = 64
_NOBODY: Final[Mapping[str, Labels]] = {}


class Fleet(Mapping[str, Labels]):
    """Labels by node name, which never change; who has which value of a label is found once, when it is first asked."""

    __slots__ = ("_by_key", "_nodes", "_values")

    def __init__(self, nodes: Mapping[str, Labels]) -> None:
        self._nodes = nodes
        self._by_key: dict[str, dict[str, dict[str, Labels]]] = {}
        self._values: dict[str, set[str]] | None = None

    def __getitem__(self, name: str) -> Labels:
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def candidates(self, selector: LabelSelector) -> Mapping[str, Labels]:
        """Nodes among which all are that the selector selects."""
        found: Mapping[str, Labels] = self._nodes
        for key, value in selector.match_labels.items():
            holders = self._holders(key).get(value, _NOBODY)
            found = holders if len(holders) < len(found) else found
        for asked in selector.match_expressions:
            if asked.operator is SelectorOperator.IN and len(asked.values) == 1:
                holders = self._holders(asked.key).get(asked.values[0], _NOBODY)
                found = holders if len(holders) < len(found) else found
        return found

    def label_values(self) -> Mapping[str, set[str]]:
        """Every value that any Node has of each label."""
        if self._values is None:
            self._values = label_values(self._nodes)
        return self._values

    def _holders(self, key: str) -> dict[str, dict[str, Labels]]:
        known = self._by_key.get(key)
        if known is None:
            known = {}
            for name, labels in self._nodes.items():
                value = labels.get(key)
                if value is not None:
                    known.setdefault(value, {})[name] = labels
            if len(self._by_key) >= _MOST_KEYS:
                self._by_key.clear()
            self._by_key[key] = known
        return known


def selected(selector: LabelSelector, nodes: Mapping[str, Labels]) -> dict[str, Labels]:
    """The nodes that the selector selects."""
    among = nodes.candidates(selector) if isinstance(nodes, Fleet) else nodes
    return {name: labels for name, labels in among.items() if selector.matches(labels)}


def label_values(nodes: Mapping[str, Labels]) -> dict[str, set[str]]:
    """Every value that any of the nodes has of each label."""
    values: dict[str, set[str]] = {}
    for labels in nodes.values():
        for key, value in labels.items():
            values.setdefault(key, set()).add(value)
    return values
