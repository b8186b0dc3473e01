"""Calls that wait for one another are done as one: what they write is on disk by one write before each is answered.

A pod's start waits for the disk. Where eight start at once the last one would wait for it eight times, though one file
holds all of it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

from dra_publisher.kubelet.service import ClaimRef


@dataclass(frozen=True, slots=True)
class Call:
    """What the kubelet asks at once, by UID. ``read`` is what the API server says of the claims, and ``began`` the
    number of calls that have taken claims back before that was asked.
    """

    method: Literal["prepare", "unprepare"]
    driver: str
    refs: Mapping[str, ClaimRef]
    read: Mapping[str, Any] = field(default_factory=dict)
    began: int = 0


@dataclass(eq=False, slots=True)
class _Waiting:
    call: Call
    answer: Mapping[str, Any] | None = None


class Together:
    """``work`` gets calls under the lock that ``held`` takes, which goes to whoever came first; an answer for each."""

    def __init__(
        self,
        held: Callable[[], AbstractAsyncContextManager[None]],
        work: Callable[[Sequence[Call]], Awaitable[Sequence[Mapping[str, Any]]]],
    ) -> None:
        self._held = held
        self._work = work
        self._waiting: list[_Waiting] = []

    async def do(self, call: Call) -> Mapping[str, Any]:
        """The answer, from a turn of its own, or from the turn of one that came before.

        Whoever is left without, because that one failed or was given up, has his own turn. Raises what either does.
        """
        own = _Waiting(call)
        self._waiting.append(own)
        try:
            async with self._held():
                if own.answer is None:
                    alike = self._alike(own)
                    for one, answer in zip(alike, await self._work([one.call for one in alike]), strict=True):
                        one.answer = answer
            assert own.answer is not None
            return own.answer
        finally:
            self._waiting.remove(own)

    def _alike(self, first: _Waiting) -> list[_Waiting]:
        """With those that came next, up to the first that asks for something else, or of the same claim: nobody is done
        before who came before.
        """
        found: list[_Waiting] = []
        uids: set[str] = set()
        for one in self._waiting[self._waiting.index(first) :]:
            same = (one.call.method, one.call.driver) == (first.call.method, first.call.driver)
            if not same or not uids.isdisjoint(one.call.refs):
                break
            found.append(one)
            uids |= one.call.refs.keys()
        return found
