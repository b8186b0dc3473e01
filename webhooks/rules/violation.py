"""What a rule finds: one fault at one field, with the rule's id and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum

from webhooks.rules.pointers import field_of


class Severity(StrEnum):
    """Whether the fault refuses the object."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault.

    ``pointer`` is a JSON pointer into the object. ``message`` says what is wrong, ``fix`` what to do about it ("" when
    the message says it all): one sentence each, without line breaks and without the rule's id. ``value`` is a hash of
    what is wrong ("" when there is nothing): the same fault of the same value is no new one, unless its ``excess``, by
    how much it is wrong, has grown. A hash, because the value may be a secret.
    """

    rule: str
    severity: Severity
    pointer: str
    message: str
    fix: str = ""
    value: str = ""
    excess: int = 0

    @property
    def field(self) -> str:
        """The field as the API server names it: ``spec.devices[0].match``; empty for the object itself."""
        return field_of(self.pointer)

    @property
    def text(self) -> str:
        """What is wrong and what to do, in one sentence."""
        return f"{self.message}; {self.fix}" if self.fix else self.message

    @property
    def line(self) -> str:
        """One line for people: ``spec.onRelease: … [NPF-ALL-004]``."""
        place = f"{self.field}: " if self.pointer else ""
        return f"{place}{self.text} [{self.rule}]"
