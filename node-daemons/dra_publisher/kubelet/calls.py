"""The kubelet's calls about claims, whatever the version: each claim gets an answer, and none before its time is up.

A call that the kubelet gives up is worked off all the same: what it has begun on disk is finished, and the repetition
finds it done. A repetition that comes meanwhile waits for the same work instead of queueing up behind it.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from dra_publisher.kubelet.service import AnsweredDevice, ClaimRef, ClaimService

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

Method: TypeAlias = Literal["prepare", "unprepare"]
OnCall: TypeAlias = Callable[[Method, str, Literal["ok", "error"], float], None]
"""Called after each claim's answer: method, driver, result, seconds that the call took."""

ANSWER_SECONDS: Final = 40.0  # the kubelet gives a call up after 45
_MARGIN_SECONDS: Final = 1.0
_CLAIMS: Final = 1024  # a pod has a handful; more is not worth an answer


class TooManyClaimsError(ValueError):
    """A call names more claims than any pod has."""


class ClaimCalls:
    """The calls of all drivers of one process."""

    def __init__(self, service: ClaimService, on_call: OnCall | None = None) -> None:
        self._on_call = on_call
        self._prepare: _Method[tuple[AnsweredDevice, ...] | str] = _Method("prepare", service.prepare)
        self._unprepare: _Method[str | None] = _Method("unprepare", service.unprepare)

    async def prepare(
        self, driver: str, claims: Sequence[ClaimRef], seconds: float | None
    ) -> Mapping[str, tuple[AnsweredDevice, ...] | str]:
        """By UID, all of ``claims``; ``seconds`` is how long the kubelet waits, None when it does not say."""
        began = time.monotonic()
        answers = await self._prepare(driver, claims, seconds, lambda error: error)
        self._tell("prepare", driver, [isinstance(answer, str) for answer in answers.values()], began)
        return answers

    async def unprepare(
        self, driver: str, claims: Sequence[ClaimRef], seconds: float | None
    ) -> Mapping[str, str | None]:
        """By UID, all of ``claims``; None is success."""
        began = time.monotonic()
        answers = await self._unprepare(driver, claims, seconds, lambda error: error)
        self._tell("unprepare", driver, [answer is not None for answer in answers.values()], began)
        return answers

    async def finish(self, seconds: float) -> None:
        """Wait for what is under way, and leave it to the next process when that takes longer."""
        running = [*self._prepare.running, *self._unprepare.running]
        if running:
            _, left = await asyncio.wait(running, timeout=seconds)
            for task in left:
                _log.warning("%s is given up: it did not end within %g s", task.get_name(), seconds)
                task.cancel()

    def _tell(self, method: Method, driver: str, errors: Sequence[bool], began: float) -> None:
        if self._on_call is not None:
            seconds = time.monotonic() - began
            for error in errors:
                self._on_call(method, driver, "error" if error else "ok", seconds)


class _Method(Generic[_Answer]):
    """One of the two methods, with the work that is under way."""

    def __init__(
        self, name: Method, work: Callable[[str, Sequence[ClaimRef]], Awaitable[Mapping[str, _Answer]]]
    ) -> None:
        self._name = name
        self._work = work
        self._running: dict[tuple[str, frozenset[ClaimRef]], asyncio.Task[Mapping[str, _Answer]]] = {}

    @property
    def running(self) -> Sequence[asyncio.Task[Mapping[str, _Answer]]]:
        return list(self._running.values())

    async def __call__(
        self, driver: str, claims: Sequence[ClaimRef], seconds: float | None, wrong: Callable[[str], _Answer]
    ) -> dict[str, _Answer]:
        if len(claims) > _CLAIMS:
            raise TooManyClaimsError(f"{len(claims)} claims in one call; at most {_CLAIMS} are answered")
        answers = {claim.uid: wrong(fault) for claim in claims if (fault := _fault(claim, claims)) is not None}
        sound = [claim for claim in dict.fromkeys(claims) if claim.uid not in answers]
        if sound:
            answers.update(await self._answers(driver, sound, seconds, wrong))
        return answers

    async def _answers(
        self, driver: str, claims: Sequence[ClaimRef], seconds: float | None, wrong: Callable[[str], _Answer]
    ) -> dict[str, _Answer]:
        task = self._joined(driver, claims)
        limit = ANSWER_SECONDS if seconds is None or not math.isfinite(seconds) else seconds - _MARGIN_SECONDS
        await asyncio.wait({task}, timeout=max(0.0, min(limit, ANSWER_SECONDS)))
        if not task.done():
            return {claim.uid: wrong(f"{self._name} is still under way; ask again") for claim in claims}
        if task.cancelled():
            return {claim.uid: wrong("the plugin is being stopped; ask again") for claim in claims}
        error = task.exception()
        if error is not None:
            text = f"{self._name} failed: {type(error).__name__}: {error}"
            return {claim.uid: wrong(text) for claim in claims}
        known = task.result()
        missing = wrong(f"{self._name} gave no answer for this claim; this is a bug of npufleet")
        reasonless = wrong(f"{self._name} failed without a reason")  # an empty text would be success on the wire
        answers = {claim.uid: known.get(claim.uid, missing) for claim in claims}
        return {uid: reasonless if answer == "" else answer for uid, answer in answers.items()}

    def _joined(self, driver: str, claims: Sequence[ClaimRef]) -> asyncio.Task[Mapping[str, _Answer]]:
        key = (driver, frozenset(claims))
        task = self._running.get(key)
        if task is None:
            names = ", ".join(f"{claim.namespace}/{claim.name}" for claim in claims)
            task = asyncio.create_task(self._run(driver, claims), name=f"{self._name} of {names} for {driver}")
            self._running[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        return task

    async def _run(self, driver: str, claims: Sequence[ClaimRef]) -> Mapping[str, _Answer]:
        return await self._work(driver, claims)

    def _ended(self, key: tuple[str, frozenset[ClaimRef]], task: asyncio.Task[Mapping[str, _Answer]]) -> None:
        self._running.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=error)


def _fault(claim: ClaimRef, claims: Sequence[ClaimRef]) -> str | None:
    """What is wrong with how the kubelet names the claim, or None."""
    for field in ("uid", "name", "namespace"):
        if not getattr(claim, field):
            return f"the call names a claim without a {field}"
    if any(other.uid == claim.uid and other != claim for other in claims):
        return f"the call names two claims with the UID {claim.uid}"
    return None
