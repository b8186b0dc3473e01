"""Asks the API server for the end of one pod, never twice in short order, and hands back the words of a refusal.

Only the eviction API is used: it honours disruption budgets and lets webhooks object, as KubeVirt's does while it moves
a VM. What it answers decides nothing here but when to ask again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from controllers.node_policy.drain.pods import Pod, refused
from runtime.api import Api, ApiError, Conflict, Forbidden, NotFound

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0
"""How long a pod that may not be evicted yet is left alone before the next attempt."""


class Evictor:
    """Evicts pods and remembers, by UID, what was answered."""

    def __init__(self, api: Api, *, may_write: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._may_write = may_write
        self._clock = clock
        self._asked: dict[str, tuple[float, str]] = {}
        self._accepted: set[str] = set()

    def accepted(self, uids: Collection[str]) -> frozenset[str]:
        """Which of these pods were evicted."""
        return frozenset(self._accepted.intersection(uids))

    async def evict(self, pod: Pod) -> str:
        """Evict one pod; returns why it cannot be, "" when its end was accepted or it is gone.

        A pod that was asked for a moment ago is not asked for again; one that does not lead asks for none.
        """
        last, text = self._asked.get(pod.uid, (float("-inf"), ""))
        if self._clock() - last < AGAIN_SECONDS or not self._may_write():
            return text
        answer = ""
        try:
            await self._api.evict(pod.name, pod.namespace, uid=pod.uid)
        except NotFound:
            self._accepted.add(pod.uid)
        except Conflict:
            log.info("%s changed, or is another pod by now", pod)  # the next look at it tells
        except ApiError as error:
            answer = self._words(pod, error)
            if answer != text:
                log.info("Not evicted: %s", answer)
        else:
            self._accepted.add(pod.uid)
            log.info("Evicted %s", pod)
        self._asked[pod.uid] = (self._clock(), answer)
        return answer

    def forget(self) -> None:
        """No drain is under way any more."""
        self._asked.clear()
        self._accepted.clear()

    def _words(self, pod: Pod, error: ApiError) -> str:
        message = error.message
        if isinstance(error, Forbidden) and "pods/eviction" in message:
            message += f" (grant create on pods/eviction to {self._api.component})"
        return refused(pod, message, (cause.message for cause in error.causes))
