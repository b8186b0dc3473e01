"""How fast a policy may change nodes, and what it may do to workloads that are in the way."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from crds.models.base import Model
from crds.models.int_or_percent import IntOrPercent


class Drain(StrEnum):
    """What may be done to workloads that use a device which has to change."""

    NEVER = "Never"
    IF_IN_USE = "IfInUse"


class Rollout(Model):
    """Limits of a policy's rollout."""

    max_unavailable: Annotated[
        IntOrPercent,
        Field(
            description=(
                "How many of the policy's nodes may be changing, drained, failed or not heard of at once: a number, or "
                "a percentage of its nodes (rounded up, at least 1)."
            ),
        ),
    ] = 1
    drain: Annotated[
        Drain,
        Field(
            description=(
                "`Never`: a change of a device in use waits until it is free. `IfInUse`: pods that use it are evicted "
                "first, as far as PodDisruptionBudgets and grace periods allow."
            )
        ),
    ] = Drain.NEVER
    drain_timeout_seconds: Annotated[
        int,
        Field(
            ge=1,
            le=86400,
            description=(
                "After this many seconds a drain is given up and undone. It is tried again after as long again, at "
                "least 60, and twice as long after each further one in vain, at most 3600."
            ),
        ),
    ] = 600
    progress_deadline_seconds: Annotated[
        int,
        Field(ge=1, le=604800, description="After this many seconds without progress the policy is `Degraded`."),
    ] = 900
