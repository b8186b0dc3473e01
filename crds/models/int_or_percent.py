"""An amount of nodes, absolute or as a percentage of the nodes that a policy matches."""

import re
from typing import Annotated, Final

from pydantic import PlainValidator, WithJsonSchema

from crds.models.base import schema_notes

PERCENT_PATTERN: Final = r"^(100|[1-9][0-9]?)%$"
LARGEST_NUMBER: Final = 100_000


def scaled(value: int | str, total: int) -> int:
    """How many of ``total`` the value allows; percentages are rounded up, at least 1.

    Rounded as a DaemonSet rounds its maxUnavailable (k8s.io/api apps/v1 RollingUpdateDaemonSet): up, so that a
    percentage never means "nothing may ever move".
    """
    if isinstance(value, int):
        return max(1, value)
    return max(1, -(-int(value.removesuffix("%")) * total // 100))


def _checked(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("neither a number of nodes nor a percentage such as 10%")
    if isinstance(value, str):
        # Not match(): for it `$` also stands before a trailing line feed.
        if not re.fullmatch(PERCENT_PATTERN.strip("^$"), value):
            raise ValueError(f"{value!r} is neither a number of nodes nor a percentage from 1% to 100%")
    elif not 1 <= value <= LARGEST_NUMBER:
        raise ValueError(f"{value} is out of range: at least 1 node may be unavailable, at most {LARGEST_NUMBER}")
    return value


IntOrPercent = Annotated[
    int | str,
    PlainValidator(_checked),
    WithJsonSchema(
        {
            **schema_notes(int_or_string=True),
            "pattern": PERCENT_PATTERN,
            "minimum": 1,
            "maximum": LARGEST_NUMBER,
            "maxLength": 4,
        }
    ),
]
