"""Faults of this program in the judgement of single objects: each costs that object alone, and never the whole plan.

Nothing here should ever happen. When it does, a fleet of thousands must not stand still for one object that nobody
thought of.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

log = logging.getLogger(__name__)

_LONGEST: Final = 512


class Faults:
    """What went wrong in one plan. `found`: by node (or `NPUNodePolicy NAME`), in words.

    `known` is what the last plan found: a fault is logged when it is new, with the place where it happened.
    """

    def __init__(self, known: Mapping[str, str]) -> None:
        self.found: dict[str, str] = {}
        self._known = known

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What is done inside is about this object alone; a fault there is noted, and ends here."""
        try:
            yield
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
            if self._known.get(name) != text and name not in self.found:
                log.exception("%s cannot be judged, and is left as it is", name)
            self.found.setdefault(name, text)
