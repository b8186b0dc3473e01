"""The API's limits on a device, each with what just fits and what is just beyond it: for our check and a server."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dra_publisher.offers.offer import Offer, Taint
from tests.builders.offers import offer

LONG_DOMAIN = "a" * 59 + ".com"


class Judged(StrEnum):
    """Who refuses what is beyond: both; we alone, for the server takes it; or we alone, for it cannot be sent."""

    BY_BOTH = "both"
    BY_US = "us"
    UNSENT = "unsent"


@dataclass(frozen=True)
class Limit:
    """Fields of an offer; `words` are of the fault that is found beyond."""

    fits: Mapping[str, Any]
    beyond: Mapping[str, Any]
    words: str
    judged: Judged = Judged.BY_BOTH


def limited(fields: Mapping[str, Any]) -> Offer:
    """An offer with these fields."""
    rest = {name: value for name, value in fields.items() if name != "name"}
    made = offer(**rest)
    return dataclasses.replace(made, name=fields["name"]) if "name" in fields else made


LIMITS = [
    Limit(
        {"attributes": {f"a{n}": n for n in range(32)}}, {"attributes": {f"a{n}": n for n in range(33)}}, "33 attrib"
    ),
    Limit(
        {"attributes": {f"a{n}": n for n in range(31)}, "capacity": {"memory": "1Gi"}},
        {"attributes": {f"a{n}": n for n in range(32)}, "capacity": {"memory": "1Gi"}},
        "33 attributes and capacities are more than 32",
    ),
    Limit({"attributes": {"a" * 32: 1}}, {"attributes": {"a" * 33: 1}}, "no C identifier of at most 32"),
    Limit({"attributes": {"_a1": 1}}, {"attributes": {"1a": 1}}, "no C identifier"),
    Limit({"attributes": {"aB": 1}}, {"attributes": {"a-b": 1}}, "no C identifier"),
    Limit({"attributes": {f"{LONG_DOMAIN}/a": 1}}, {"attributes": {f"a{LONG_DOMAIN}/a": 1}}, "no DNS subdomain"),
    Limit({"attributes": {"x.io/a": 1}}, {"attributes": {"X.io/a": 1}}, "no DNS subdomain", Judged.BY_US),
    Limit({"attributes": {"x.io/a": 1}}, {"attributes": {"/a": 1}}, "no DNS subdomain"),
    Limit({"attributes": {"x.io/a": 1}}, {"attributes": {"x.io/a/b": 1}}, "no DNS subdomain", Judged.BY_US),
    Limit({"attributes": {"x.io/a": 1}}, {"attributes": {"x.io/": 1}}, "no C identifier"),
    Limit(
        {"attributes": {"x.io/a": 1, "a": 1}},
        {"attributes": {"npufleet.io/a": 1, "a": 1}},
        "is there twice",
        Judged.BY_US,
    ),
    Limit({"attributes": {"a": "é" * 32}}, {"attributes": {"a": "é" * 32 + "x"}}, "65 bytes are more than 64"),
    Limit({"attributes": {"a": ""}}, {"attributes": {"a": "\ud800"}}, "it is no text", Judged.UNSENT),
    Limit({"attributes": {"a": 2**63 - 1}}, {"attributes": {"a": 2**63}}, "does not fit 64 bits"),
    Limit({"attributes": {"a": -(2**63)}}, {"attributes": {"a": -(2**63) - 1}}, "does not fit 64 bits"),
    Limit(
        {"attributes": {"a": True}}, {"attributes": {"a": 1.5}}, "float is none of bool, int and string", Judged.UNSENT
    ),
    Limit({"attributes": {"a": False}}, {"attributes": {"a": None}}, "NoneType is none of", Judged.UNSENT),
    Limit({"capacity": {"memory": "0"}}, {"capacity": {"memory": "-1"}}, "is negative", Judged.BY_US),
    Limit({"capacity": {"memory": "16Gi"}}, {"capacity": {"memory": "16GiB"}}, "is not a quantity"),
    Limit({"capacity": {"a" * 32: "1"}}, {"capacity": {"a" * 33: "1"}}, "no C identifier"),
    Limit({"name": "a" * 63}, {"name": "a" * 64}, "no DNS label of at most 63"),
    Limit({"name": "vfio-0"}, {"name": "vfio-0000:27:00.0"}, "no DNS label"),
    Limit({"name": "vfio-0"}, {"name": "vfio-"}, "no DNS label"),
    Limit({"name": "vfio-0"}, {"name": ""}, "no DNS label"),
    Limit(
        {"taints": [Taint(f"x.io/{n}", "A") for n in range(16)]},
        {"taints": [Taint(f"x.io/{n}", "A") for n in range(17)]},
        "17 taints are more than 16",
    ),
    Limit({"taints": [Taint("x.io/a", "A" * 63)]}, {"taints": [Taint("x.io/a", "A" * 64)]}, "form of a label's value"),
    Limit({"taints": [Taint("x.io/a", "")]}, {"taints": [Taint("x.io/a", "a b")]}, "form of a label's value"),
    Limit(
        {"taints": [Taint("x.io/" + "a" * 63, "")]}, {"taints": [Taint("x.io/" + "a" * 64, "")]}, "no key of the form"
    ),
    Limit({"taints": [Taint("a", "")]}, {"taints": [Taint("", "")]}, "no key of the form"),
    Limit({"taints": [Taint("x.io/a", "")]}, {"taints": [Taint("/a", "")]}, "no key of the form"),
    Limit(
        {"taints": [Taint("x.io/a", "A"), Taint("x.io/b", "A")]},
        {"taints": [Taint("x.io/a", "A"), Taint("x.io/a", "B")]},
        "is there twice",
        Judged.BY_US,
    ),
]
