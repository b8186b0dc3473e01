"""Kubernetes quantities as exact numbers.

Source: k8s.io/apimachinery ``resource.ParseQuantity``: a decimal number with an optional exponent, decimal SI suffix
(n u m "" k M G T P E) or binary suffix (Ki Mi Gi Ti Pi Ei). Amounts finer than one nano are rounded up in magnitude,
and binary amounts end at the largest int64, both as the API server does. What that parser takes by accident ("Ki" and
"." are 0 to it) is refused here.
"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Final

from pydantic import AfterValidator, Field

# The schema's pattern: non-negative quantities only, none of the API's amounts can be negative.
QUANTITY_PATTERN: Final = (
    r"^\+?([0-9]{1,15}(\.[0-9]{0,9})?|\.[0-9]{1,9})(([KMGTPE]i)|[numkMGTPE]|([eE][-+]?([12]?[0-9]|30)))?$"
)
_PARTS: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+)(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?"
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
_LARGEST_EXPONENT: Final = 30
_NANO: Final = 10**9
_LARGEST_BINARY: Final = Fraction(2**63 - 1)


def parse_quantity(text: str) -> Fraction:
    """The amount in base units (bytes, cores, …), as the API server counts it.

    Raises ValueError with the text and the legal form when it is no quantity.
    """
    found = _PARTS.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise ValueError(
            f"{text[:_LONGEST]!r} is not a quantity: write a number with an optional suffix, e.g. 512Mi, 8Gi or 1.5"
        )
    suffix = found["suffix"] or ""
    amount = Fraction(Decimal(found["number"]))
    if suffix[:1] in {"e", "E"} and suffix[1:2] not in {"", "i"}:
        exponent = int(suffix[1:])
        if abs(exponent) > _LARGEST_EXPONENT:
            raise ValueError(f"{text!r} is not a quantity that fits: the exponent is beyond ±{_LARGEST_EXPONENT}")
        amount *= Fraction(10) ** exponent
    else:
        amount *= _SCALE[suffix]
    amount = Fraction(-(-amount.numerator * _NANO // amount.denominator), _NANO)
    if suffix.endswith("i"):
        amount = min(amount, _LARGEST_BINARY)
    return -amount if found["sign"] == "-" else amount


def _checked(text: str) -> str:
    parse_quantity(text)
    return text


Quantity = Annotated[str, Field(min_length=1, max_length=32, pattern=QUANTITY_PATTERN), AfterValidator(_checked)]
