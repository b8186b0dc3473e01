"""Judges an object by a structural schema alone, as the API server does: unknown fields refused, then CEL rules.

Independent of the models: the linter's own judgement of a schema, which tests compare with models and API server.
"""

from typing import Any

from webhooks.rules.between_fields import broken_rules, holds
from webhooks.rules.pointers import field_of
from webhooks.rules.structural import flaws, unknown_fields, without_nulls

Schema = dict[str, Any]


class Judge:
    """Says what the API server would find wrong with an object, with unknown fields refused."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def faults(self, obj: Any) -> list[str]:
        """What is wrong, one text per fault; CEL rules are looked at when nothing else is wrong."""
        left = without_nulls(obj)
        found = [*unknown_fields(self._schema, obj), *flaws(self._schema, left)]
        told = [f"{field_of(flaw.pointer)}: {flaw.message}" for flaw in found]
        return told or [f"{field_of(rule.pointer)}: {rule.message}" for rule in broken_rules(self._schema, left)]


def rule_holds(rule: str, value: Any) -> bool:
    """Whether a CEL rule is true of ``self`` = value."""
    return holds(rule, value)
