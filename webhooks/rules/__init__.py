"""The rules that an object of our kinds has to keep, pure: the server and the linter run the same functions.

Importing the package registers every rule; `RULES` has them by id. A rule's id stays its own for ever.
"""

from collections.abc import Mapping
from typing import Final

from webhooks.rules import (
    between_policies,
    break_glass,
    cel_rules,
    drains,
    free_text,
    modes,
    narrowing,
    products,
    quotas,
    references,
    rule_order,
    schema_rules,
    selectors,
    vgpu_layouts,
)
from webhooks.rules.rule import Layer, Rule, all_rules
from webhooks.rules.subject import Operation, Subject
from webhooks.rules.view import UNKNOWN, KnownView, Unknown, View
from webhooks.rules.violation import Severity, Violation

_MODULES = (
    between_policies,
    break_glass,
    cel_rules,
    drains,
    free_text,
    modes,
    narrowing,
    products,
    quotas,
    references,
    rule_order,
    schema_rules,
    selectors,
    vgpu_layouts,
)

RULES: Final[Mapping[str, Rule]] = all_rules()

__all__ = [
    "RULES",
    "UNKNOWN",
    "KnownView",
    "Layer",
    "Operation",
    "Rule",
    "Severity",
    "Subject",
    "Unknown",
    "View",
    "Violation",
]
