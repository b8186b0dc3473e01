"""The vGPUs of a card that an order leaves as they are, so that whoever has one is in nobody's way. Pure.

The profile writer decides it on the host (`profile_writer/plan.py`); this tells the same of what it reports, for orders
that are not given yet.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping

from controllers.node_policy.plan.orders import Shape
from crds.models.modes import Mode


def kept_vgpus(
    present: Shape | None, wanted: Shape | None, carried: Mapping[str, str], used: Collection[str]
) -> frozenset[str]:
    """Virtual functions that keep their profile by the step from one order to the next, those in use before others.

    `carried` are the profiles of functions that are as the present order wants them.
    """
    before, after = _layout_of(present), _layout_of(wanted)
    # The driver changes to mixed sizes only while no function of the card has a type.
    if not after or (len(before) == 1 and len(after) > 1):
        return frozenset()
    kept = []
    for function in sorted(carried, key=lambda one: (one not in used, one)):
        if after[carried[function]] > 0:
            after[carried[function]] -= 1
            kept.append(function)
    return frozenset(kept)


def _layout_of(shape: Shape | None) -> Counter[str]:
    if shape is None or shape.mode is not Mode.VGPU:
        return Counter()
    counts: Counter[str] = Counter()
    for one in json.loads(shape.block).get("layout", ()):
        counts[one["profile"]] += one["count"]
    return counts
