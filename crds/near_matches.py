"""The known words that somebody may have meant."""

import difflib
from collections.abc import Iterable
from typing import Final

_LONGEST: Final = 1024
"""Nothing that is known is as long."""


def near_matches(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    """At most ``most`` known words that look like ``word``, best first; upper and lower case are the same here.

    A known word that differs in case only is what was meant, and the only one.
    """
    if len(word) > _LONGEST:
        return []
    by_folded: dict[str, str] = {}
    for candidate in known:
        by_folded.setdefault(candidate.casefold(), candidate)
    if word.casefold() in by_folded:
        return [by_folded[word.casefold()]]
    found = difflib.get_close_matches(word.casefold(), by_folded, n=most, cutoff=0.6)
    return [by_folded[folded] for folded in found]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence for a message, e.g. ``; did you mean RBLN-CA25 or RBLN-CA22?``; empty when nothing is near."""
    return question(near_matches(word, known))


def question(found: list[str]) -> str:
    """The sentence that asks whether one of these was meant; empty when there is none."""
    if not found:
        return ""
    return f"; did you mean {', '.join(found[:-1])}{' or ' if found[1:] else ''}{found[-1]}?"
