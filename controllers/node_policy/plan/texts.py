"""Texts of daemons as they go into the status of other objects: without what moves by itself.

A process that is started anew is the same user to people. With its number in the text, every look of a daemon at a busy
device would cost a write of the node and one of the policy.
"""

import re
from collections.abc import Iterable
from typing import Final

_BRACKETED: Final = re.compile(r" \(pids? [0-9]+(?:, [0-9]+)*\)")
_OPENERS: Final = re.compile(r"\bpid [0-9]+ (?:has|and [0-9]+ more have) ")
_PLAIN: Final = re.compile(r"\bpids? [0-9]+(?:, [0-9]+)* ?")
_LEFT_OUT: Final = re.compile(r"\b[0-9]+ (?=more are not listed)")
_USERS: Final = "in use by "


def lasting(text: str) -> str:
    """The text without numbers of processes, nor how many, and with each user of a device once."""
    if "pid" not in text and "more" not in text:
        return text
    text = _OPENERS.sub("has ", _LEFT_OUT.sub("", text))
    text = _PLAIN.sub("", _BRACKETED.sub("", text)).replace(" ()", "")
    before, said, users = text.partition(_USERS)
    if not said:
        return text
    parts = users.split("; ")
    return before + said + "; ".join(distinct(parts) if all(part.endswith(")") for part in parts) else parts)


def distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """Each text once, in an order that does not depend on the one in which they were found."""
    return tuple(sorted(set(texts)))
