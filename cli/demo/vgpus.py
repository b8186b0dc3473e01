"""What the demo shows of the node with L40S: the vGPUs in its sysfs, and the orders that made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from simulated_node.records import WriteRecord

NODE = "node-l40s"
MAP = "l40s-map.yaml"
HALVES = "    - {profile: L40S-24Q, count: 2}\n"
MIXED = "    - {profile: L40S-24Q, count: 1}\n    - {profile: L40S-12Q, count: 2}\n    mixedSizes: Allow\n"
_TOOL = "tool:"
_TYPE = "/nvidia/current_vgpu_type"


def vgpus(root: Path) -> dict[str, tuple[str, int]]:
    """The card and the type number of each virtual function that has one, by address, as the host's sysfs tells."""
    found = {}
    for path in sorted((root / "sys/bus/pci/devices").glob(f"*{_TYPE}")):
        number, function = int(path.read_text()), path.parents[1]
        if number:
            found[function.name] = (function / "physfn").readlink().name, number
    return found


def summary(carried: dict[str, tuple[str, int]]) -> str:
    """How many functions of each type there are, by card."""
    cards: dict[str, Counter[int]] = {}
    for card, number in carried.values():
        cards.setdefault(card, Counter())[number] += 1
    if not cards:
        return "no virtual function has a type"
    return "; ".join(
        f"{card} has " + ", ".join(f"{count} x type {number}" for number, count in sorted(counts.items()))
        for card, counts in sorted(cards.items())
    )


def is_order(record: WriteRecord) -> bool:
    """Whether it is to change something: a query of the vendor's program is not."""
    return not (record.path.startswith(_TOOL) and record.data.endswith("-q"))


def orders(records: Iterable[WriteRecord]) -> list[str]:
    """What the writer ordered, in its order, in words: programs of the vendor that change something, and types."""
    lines = []
    for record in filter(is_order, records):
        if record.path.startswith(_TOOL):
            lines.append(f"{record.path.removeprefix(_TOOL)} {record.data}")
        elif record.path.endswith(_TYPE):
            function = record.path.removesuffix(_TYPE).rpartition("/")[2]
            lines.append(f"{function} current_vgpu_type ← {record.data.strip()}")
    return lines
