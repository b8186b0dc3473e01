"""The rows as a table for people: columns as kubectl sets them, what is long last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from cli.devices.rows import Offer, Row

T = TypeVar("T")

_GAP = "   "
_NONE = "-"
_UNKNOWN = "?"

Column = tuple[str, Callable[[Row], str]]

_NODE: Column = ("NODE", lambda row: row.node)
_DEVICE: tuple[Column, ...] = (
    ("ADDRESS", lambda row: row.address),
    ("PRODUCT", lambda row: row.kind),
    ("DRIVER", lambda row: row.driver),
    ("GROUP", lambda row: _number(row.iommu_group)),
)
_NUMA: Column = ("NUMA", lambda row: _number(row.numa_node))
_MODE: Column = ("MODE", lambda row: f"{row.mode} ({row.intent})" if row.intent not in ("", "Apply") else row.mode)
_POLICY: Column = ("POLICY/RULE", lambda row: f"{row.policy}/{row.rule}" if row.policy else "")
_OFFERED: Column = ("OFFERED", lambda row: _many(row.offers, _driver))
_NAME: Column = ("OFFERED-AS", lambda row: _many(row.offers, _name))
_ALLOCATED: Column = ("ALLOCATED-TO", lambda row: _many(row.allocations, str))
_USED: Column = ("USED-BY", lambda row: "; ".join(row.used_by))
_REASON: Column = ("REASON", lambda row: str(row.why) if row.why else "")


def table(rows: Sequence[Row], *, wide: bool, of_host: bool = False) -> list[str]:
    """Lines without trailing blanks: a heading, and one for each row. A host knows neither its name nor orders."""
    columns: list[Column] = [*([] if of_host else [_NODE]), *_DEVICE, *([_NUMA] if wide else [])]
    if not of_host:
        columns += [_MODE, *([_POLICY] if wide else [])]
    columns += [_NAME if wide and not of_host else _OFFERED, _ALLOCATED]
    columns += [*([_USED] if wide or of_host else []), _REASON]
    # A message may have several lines; a row has one.
    cells = [[" ".join((read(row) or _NONE).split()) for _, read in columns] for row in rows]
    return list(_aligned([[name for name, _ in columns], *cells]))


def _aligned(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    for line in lines:
        yield _GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _many(found: Iterable[T] | None, told: Callable[[T], str]) -> str:
    return _UNKNOWN if found is None else ", ".join(dict.fromkeys(map(told, found)))


def _driver(offer: Offer) -> str:
    return offer.driver or "yes"


def _name(offer: Offer) -> str:
    return f"{offer.driver}/{offer.name}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
