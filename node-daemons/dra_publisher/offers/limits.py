"""The limits of the API on a device, checked before it is published: a slice that the server refuses is refused whole.

Sources: k8s.io/kubernetes pkg/apis/resource/validation and k8s.io/api resource/v1; labels: apimachinery.
"""

import re
from collections.abc import Iterator
from typing import Final

from crds.models.quantity import parse_quantity
from dra_publisher.offers.offer import Attribute, Offer, Taint

MAX_ATTRIBUTES_AND_CAPACITIES: Final = 32
MAX_TAINTS: Final = 16
MAX_TEXT: Final = 64
"""Bytes of an attribute's string."""
MAX_DOMAIN: Final = 63
MAX_IDENTIFIER: Final = 32
MAX_LABEL: Final = 63
MAX_PREFIX: Final = 253

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_INTEGERS: Final = range(-(2**63), 2**63)
_SHOWN: Final = 80


def fault_of(offer: Offer) -> str | None:
    """Why the API server would refuse the device, the fields named; None when it would take it."""
    return "; ".join(_faults(offer)) or None


def fault_of_driver(name: str) -> str | None:
    """Why the API server would refuse the name of a driver."""
    if len(name) > MAX_DOMAIN or _SUBDOMAIN.fullmatch(name) is None:
        return f"driver {name[:_SHOWN]!r} is no DNS subdomain of at most {MAX_DOMAIN} letters"
    return None


def _faults(offer: Offer) -> Iterator[str]:
    if len(offer.name) > MAX_LABEL or _LABEL.fullmatch(offer.name) is None:
        yield f"name {offer.name[:_SHOWN]!r} is no DNS label of at most {MAX_LABEL} letters"
    fault = fault_of_driver(offer.driver)
    if fault is not None:
        yield fault
    number = len(offer.attributes) + len(offer.capacity)
    if number > MAX_ATTRIBUTES_AND_CAPACITIES:
        yield f"{number} attributes and capacities are more than {MAX_ATTRIBUTES_AND_CAPACITIES}"
    for kind, names in (("attribute", offer.attributes), ("capacity", offer.capacity)):
        for name in names:
            fault = _name_fault(name)
            if fault is not None:
                yield f"{kind} {name[:_SHOWN]!r}: {fault}"
            if name.partition("/")[0] == offer.driver and name.partition("/")[2] in names:
                yield f"{kind} {name[:_SHOWN]!r} is there twice: a name without a domain is in the driver's"
    for name, value in offer.attributes.items():
        fault = _value_fault(value)
        if fault is not None:
            yield f"attribute {name[:_SHOWN]!r}: {fault}"
    for name, amount in offer.capacity.items():
        fault = _amount_fault(amount)
        if fault is not None:
            yield f"capacity {name[:_SHOWN]!r}: {fault}"
    yield from _taint_faults(offer.taints)


def _name_fault(name: str) -> str | None:
    domain, slash, identifier = name.rpartition("/")
    if slash and (len(domain) > MAX_DOMAIN or _SUBDOMAIN.fullmatch(domain) is None):
        return f"its domain is no DNS subdomain of at most {MAX_DOMAIN} letters"
    if len(identifier) > MAX_IDENTIFIER or _IDENTIFIER.fullmatch(identifier) is None:
        return f"it is no C identifier of at most {MAX_IDENTIFIER} letters"
    return None


def _value_fault(value: Attribute) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return None if value in _INTEGERS else f"{value} does not fit 64 bits"
    if not isinstance(value, str):
        return f"{type(value).__name__} is none of bool, int and string"  # type: ignore[unreachable] # read from outside
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        return "it is no text"
    return None if length <= MAX_TEXT else f"{length} bytes are more than {MAX_TEXT}"


def _amount_fault(amount: str) -> str | None:
    try:
        return None if parse_quantity(amount) >= 0 else f"{amount!r} is negative"
    except ValueError as error:
        return str(error)


def _taint_faults(taints: tuple[Taint, ...]) -> Iterator[str]:
    if len(taints) > MAX_TAINTS:
        yield f"{len(taints)} taints are more than {MAX_TAINTS}"
    seen: set[str] = set()
    for taint in taints:
        prefix, slash, name = taint.key.rpartition("/")
        bad_prefix = slash and (len(prefix) > MAX_PREFIX or _SUBDOMAIN.fullmatch(prefix) is None)
        if bad_prefix or len(name) > MAX_LABEL or _LABEL_VALUE.fullmatch(name) is None:
            yield f"taint {taint.key[:_SHOWN]!r} has no key of the form of a label's"
        if taint.value and (len(taint.value) > MAX_LABEL or _LABEL_VALUE.fullmatch(taint.value) is None):
            yield f"taint {taint.key[:_SHOWN]!r}: {taint.value[:_SHOWN]!r} has not the form of a label's value"
        if taint.key in seen:
            yield f"taint {taint.key[:_SHOWN]!r} is there twice"
        seen.add(taint.key)
