"""Label selectors with the API server's exact semantics.

Source: k8s.io/apimachinery metav1.LabelSelector and labels.Requirement: all requirements must hold; an empty selector
selects everything; ``NotIn`` and ``DoesNotExist`` also select objects without the key.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field, model_validator

from crds.models.base import ATOMIC_LIST, Model, absent, cel, fault, key_rule, schema_notes

_VALUES_MISFIT: Final = "values are required with In and NotIn and forbidden with Exists and DoesNotExist"
_KEY_LENGTH: Final = 317
_KEY_PATTERN: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
LabelKey = Annotated[str, Field(min_length=1, max_length=_KEY_LENGTH, pattern=_KEY_PATTERN)]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]


class SelectorOperator(StrEnum):
    """How a key is compared with the values."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class SelectorRequirement(Model):
    """One requirement on a label."""

    model_config = ConfigDict(
        json_schema_extra=schema_notes(
            cel(
                "NPF-NP-009",
                "self.operator in ['In', 'NotIn'] ? (has(self.values) && size(self.values) > 0) : "
                "(!has(self.values) || size(self.values) == 0)",
                _VALUES_MISFIT,
                ".values",
            )
        )
    )

    key: Annotated[LabelKey, Field(description="The label's key.")]
    operator: Annotated[
        SelectorOperator, Field(description="How the label is compared: In, NotIn, Exists, DoesNotExist.")
    ]
    values: Annotated[
        tuple[LabelValue, ...],
        Field(
            max_length=64,
            description="The values for In and NotIn; forbidden with Exists and DoesNotExist.",
            json_schema_extra=ATOMIC_LIST | absent("no value"),
        ),
    ] = ()

    @model_validator(mode="after")
    def _values_fit_operator(self) -> "SelectorRequirement":
        needs_values = self.operator in (SelectorOperator.IN, SelectorOperator.NOT_IN)
        if needs_values != bool(self.values):
            raise fault(_VALUES_MISFIT, "values")
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels meets the requirement."""
        value = labels.get(self.key)
        match self.operator:
            case SelectorOperator.IN:
                return value is not None and value in self.values
            case SelectorOperator.NOT_IN:
                return value is None or value not in self.values
            case SelectorOperator.EXISTS:
                return value is not None
            case SelectorOperator.DOES_NOT_EXIST:
                return value is None


class LabelSelector(Model):
    """A metav1.LabelSelector; `{}` selects everything."""

    model_config = ConfigDict(json_schema_extra=schema_notes(map_type="atomic"))

    match_labels: Annotated[
        dict[LabelKey, LabelValue],
        Field(
            max_length=32,
            description="Labels that must have exactly these values.",
            json_schema_extra=absent("no requirement")
            | schema_notes(
                key_rule(
                    "NPF-NP-010",
                    _KEY_PATTERN,
                    _KEY_LENGTH,
                    "a key of matchLabels must be a label key: NAME or DOMAIN/NAME",
                )
            ),
        ),
    ] = Field(default_factory=dict)
    match_expressions: Annotated[
        tuple[SelectorRequirement, ...],
        Field(
            max_length=32,
            description="Further requirements; all must hold.",
            json_schema_extra=ATOMIC_LIST | absent("no requirement"),
        ),
    ] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        # Loops, not generators: this is asked of every node of a fleet while somebody waits for a review.
        for key, value in self.match_labels.items():
            if labels.get(key) != value:
                return False
        for requirement in self.match_expressions:  # noqa: SIM110
            if not requirement.matches(labels):
                return False
        return True
