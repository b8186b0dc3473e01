"""Kubernetes quantities as exact numbers.

Source: k8s.io/apimachinery resource.Quantity: a decimal number with an optional exponent, decimal SI suffix
(n u m "" k M G T P E) or binary suffix (Ki Mi Gi Ti Pi Ei).
"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Final

from pydantic import AfterValidator, Field

# The schema's pattern: non-negative quantities only, none of the API's amounts can be negative.
QUANTITY_PATTERN: Final = (
    r"^\+?([0-9]{1,15}(\.[0-9]{0,9})?|\.[0-9]{1,9})(([KMGTPE]i)|[numkMGTPE]|([eE][-+]?[0-9]{1,2}))?$"
)
_PARTS: Final = re.compile(
    r"^(?P<sign>[+-]?)(?P<number>\d+\.?\d*|\.\d+)(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][-+]?\d+)?$"
)
_SCALE: Final = {
    "": Fraction(1),
    **{
        suffix: Fraction(1000) ** power
        for suffix, power in zip("numkMGTPE", (-3, -2, -1, 1, 2, 3, 4, 5, 6), strict=True)
    },
    **{f"{prefix}i": Fraction(1024) ** power for power, prefix in enumerate("KMGTPE", start=1)},
}
_LONGEST: Final = 64


def parse_quantity(text: str) -> Fraction:
    """The exact amount in base units (bytes, cores, …).

    Raises ValueError with the text and the legal form when it is no quantity.
    """
    found = _PARTS.match(text) if len(text) <= _LONGEST else None
    if found is None:
        raise ValueError(
            f"{text[:_LONGEST]!r} is not a quantity: write a number with an optional suffix, e.g. 512Mi, 8Gi or 1.5"
        )
    suffix = found["suffix"] or ""
    number = Fraction(Decimal(found["number"]))
    if suffix[:1] in {"e", "E"} and len(suffix) > 1:
        exponent = int(suffix[1:])
        if abs(exponent) > 30:
            raise ValueError(f"{text!r} is not a quantity that fits: the exponent is out of range")
        number *= Fraction(10) ** exponent
    else:
        number *= _SCALE[suffix]
    return -number if found["sign"] == "-" else number


def format_bytes(amount: int) -> str:
    """A whole number of bytes in the largest binary unit that holds it exactly: 8589934592 is ``8Gi``."""
    for power, prefix in reversed(list(enumerate("KMGTPE", start=1))):
        unit = 1024**power
        if amount and amount % unit == 0:
            return f"{amount // unit}{prefix}i"
    return str(amount)


def _checked(text: str) -> str:
    parse_quantity(text)
    return text


Quantity = Annotated[str, Field(min_length=1, max_length=32, pattern=QUANTITY_PATTERN), AfterValidator(_checked)]
