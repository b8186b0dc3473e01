"""The drainer's rounds: look at every node under drain, evict who may be evicted, and say what was seen.

One round in five seconds, and one at once when the planner wants something else; fewer where a round takes long, for
all claims of the cluster are listed once a round, with quorum, while a drain is under way. Nothing is remembered that a
successor would need: pods that are terminating show it themselves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from controllers.node_policy.drain.claims import AllocatedClaim, ClaimUse, claims_on, uses_of
from controllers.node_policy.drain.evictor import AGAIN_SECONDS, Evictor
from controllers.node_policy.drain.in_vain import kept_devices
from controllers.node_policy.drain.pods import (
    Action,
    Pod,
    find_users,
    judge,
    read_pod,
    terminating,
    told,
    unknown_user,
)
from controllers.node_policy.plan.drains import DrainOrder
from controllers.node_policy.plan.view import DrainFacts
from runtime.api import Api, ApiError, Forbidden, NotFound
from runtime.resources import PODS, RESOURCE_CLAIMS

log = logging.getLogger(__name__)

_AT_ONCE = 8
# Of its time the drainer spends at most a fifth on looking.
_REST_PER_ROUND = 4.0


@dataclass(frozen=True, slots=True)
class _Task:
    """One node: `marked` when the Node says already that it is being drained; before that nobody is evicted."""

    order: DrainOrder
    marked: bool


@dataclass(slots=True)
class _Users:
    """Pods on the devices of one drain. `claimed`: by a claim; `certain`: all that is needed to judge was read.

    `places`: the devices that each of them uses. `kept`: devices that stay in use whoever is evicted. `unknown`: UIDs
    of pods whose processes use a device, and that the API server does not know.
    """

    pods: dict[str, Pod] = field(default_factory=dict)
    claimed: dict[str, bool] = field(default_factory=dict)
    places: dict[str, frozenset[str]] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    texts: list[str] = field(default_factory=list)
    certain: bool = True

    @property
    def strangers(self) -> bool:
        """Some that may go have no claim, and others would come in their place while the node takes new pods."""
        return any(
            not by_claim
            and self.kept.isdisjoint(self.places[uid])
            and judge(self.pods[uid], by_claim=False).action is not Action.LEAVE
            for uid, by_claim in self.claimed.items()
        )


class Rounds:
    """Looks and evicts for the leader. `facts` is what was seen last, by node; `replan` is called when they change.

    `evicts` False: another drainer empties nodes, here it is only told who is in the way. `problem`: what keeps a Node
    from being marked, "" when nothing does.
    """

    def __init__(
        self,
        api: Api,
        *,
        may_write: Callable[[], bool],
        replan: Callable[[], None],
        problem: Callable[[str], str] = lambda node: "",
        evicts: bool = True,
        evictor: Evictor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.facts: dict[str, DrainFacts] = {}
        self._api = api
        self._may_write = may_write
        self._replan = replan
        self._problem = problem
        self._evicts = evicts
        self._evictor = evictor or Evictor(api, may_write=may_write)
        self._clock = clock
        self._tasks: dict[str, _Task] = {}
        self._rest_until = 0.0
        self._served = True
        self._gate = asyncio.Semaphore(_AT_ONCE)

    def post(self, drains: Mapping[str, DrainOrder], unmarked: Collection[str]) -> float | None:
        """Take over what the newest plan wants, with the Nodes that are still to be marked.

        Returns in how many seconds a round is due that is not due anyhow, None when there is none.
        """
        tasks = {name: _Task(order, name not in unmarked) for name, order in drains.items()}
        changed = tasks != self._tasks
        self._tasks = tasks
        for name in self.facts.keys() - tasks.keys():
            del self.facts[name]
        if not tasks:
            self._evictor.forget()
        return max(0.0, self._rest_until - self._clock()) if changed and tasks else None

    def stop(self) -> None:
        """Evict nobody any more; the round that runs comes to its end."""
        self.post({}, ())

    async def run(self, _: str) -> float | None:
        """One round; returns the seconds until the next one, None while nothing is to be drained.

        Raises ApiError when what it needs could not be read: what was seen before stands until then.
        """
        tasks = dict(self._tasks)
        if not tasks:
            return None
        if not self._may_write():
            return 1.0
        started = self._clock()
        asked = frozenset(name for name, task in tasks.items() if task.order.devices)
        listed = await self._list_claims(asked) if asked else []
        # Only this grows with the cluster; how long evictions take does not matter.
        rest = _REST_PER_ROUND * (self._clock() - started)
        self._rest_until = self._clock() + rest
        claims: Sequence[AllocatedClaim] = [] if isinstance(listed, str) else listed
        missing = listed if isinstance(listed, str) else ""
        async with asyncio.TaskGroup() as group:
            looks = [group.create_task(self._look(task, claims, missing)) for task in tasks.values()]
        failures = [error for look in looks if (error := look.result()) is not None]
        if failures:
            raise failures[0]
        return max(AGAIN_SECONDS, rest)

    async def _list_claims(self, nodes: frozenset[str]) -> Sequence[AllocatedClaim] | str:
        """The claims on devices of these nodes; a text when they may not be listed."""
        try:
            listing = await self._api.list(RESOURCE_CLAIMS, convert=claims_on(nodes))
        except NotFound as error:
            if not error.not_served:
                raise
            if self._served:
                log.warning("The API server serves no %s: no device is used through a claim", RESOURCE_CLAIMS.full_name)
            self._served = False
            return []
        except Forbidden as error:
            return _lacks(self._api, f"list on {RESOURCE_CLAIMS.full_name}", error)
        self._served = True
        return [claim for claim in listing.items if claim is not None]

    async def _look(self, task: _Task, claims: Sequence[AllocatedClaim], missing: str) -> ApiError | None:
        """Look at one node, evict there, and note the facts. A node that cannot be read holds up no other."""
        order = task.order
        uses = uses_of(order, claims)
        try:
            users = _Users(texts=[missing], certain=False) if missing else await self._users(order, uses)
            self._note_kept(order, uses, users)
            texts = await self._empty(task, uses, users)
        except ApiError as error:
            log.warning("Node %s could not be looked at for its drain: %s", order.node, error)
            return error
        before = self.facts.get(order.node) or DrainFacts(order.revision, False, (), (), frozenset())
        ending = {uid for uid, pod in users.pods.items() if pod.terminating}
        facts = DrainFacts(
            revision=order.revision,
            # Once cordoned, a node stays so until its drain is over: a device that is free again must not be taken.
            needs_cordon=before.needs_cordon or users.strangers,
            blockers=told([*texts, problem] if (problem := self._problem(order.node)) else texts),
            claims=tuple(use.claim.full_name for use in uses),
            # Whoever ended them: a new leader finds the work of the last one so.
            evicted=before.evicted | self._evictor.accepted(users.pods.keys()) | ending,
        )
        if facts != self.facts.get(order.node) and order.node in self._tasks:
            self.facts[order.node] = facts
            self._replan()
        return None

    async def _users(self, order: DrainOrder, uses: Sequence[ClaimUse]) -> _Users:
        """The pods that use devices of the drain: by claims, and by what the node sees of their processes."""
        found = _Users()
        consumers = {consumer.uid: consumer for use in uses for consumer in use.claim.pods}
        try:
            for uid, consumer in sorted(consumers.items()):
                pod = await self._find(consumer.namespace, consumer.name)
                if pod is not None and pod.uid == uid:
                    found.pods[uid], found.claimed[uid] = pod, True
            seen = frozenset[str]().union(*(device.pods for device in order.devices))
            strange = seen.difference(consumers)
            if strange:
                here = await self._api.list(PODS, field_selector=f"spec.nodeName={order.node}", convert=read_pod)
                known = find_users(strange, here.items)
                for pod in known.values():
                    found.pods[pod.uid] = pod
                    found.claimed[pod.uid] = found.claimed.get(pod.uid, False)
                found.unknown = strange - known.keys()
                found.texts += [unknown_user(uid, order.devices) for uid in found.unknown]
        except Forbidden as error:
            found.texts.append(_lacks(self._api, "get and list on pods", error))
            found.certain = False
        return found

    def _note_kept(self, order: DrainOrder, uses: Sequence[ClaimUse], users: _Users) -> None:
        users.places = {uid: _places(order, pod, uses) for uid, pod in users.pods.items()}
        stay = [
            uid for uid, pod in users.pods.items() if judge(pod, by_claim=users.claimed[uid]).action is Action.LEAVE
        ]
        held = {device.address for use in uses if use.claim.others for device in use.devices}
        # One that was evicted is no longer known, and its process is still to be seen for a moment.
        before = self.facts.get(order.node)
        strange = users.unknown - before.evicted if before is not None else users.unknown
        held |= {device.address for device in order.devices if not strange.isdisjoint(device.pods)}
        users.kept = kept_devices(users.places, stay, held)

    async def _find(self, namespace: str, name: str) -> Pod | None:
        try:
            return read_pod(await self._api.get(PODS, name, namespace))
        except NotFound:
            return None

    async def _empty(self, task: _Task, uses: Sequence[ClaimUse], users: _Users) -> list[str]:
        """Evict whom this drain may evict now; returns what stands in its way."""
        texts = list(users.texts)
        for use in uses:
            held = f"claim {use.claim.full_name} holds {use.addresses}"
            texts += [f"{held} for {other}, which no eviction moves" for other in use.claim.others]
            if not use.claim.pods and not use.claim.others:
                texts.append(f"{held}, though it is reserved for no pod")
        evict = []
        for uid, pod in users.pods.items():
            judgement = judge(pod, by_claim=users.claimed[uid])
            kept = users.places[uid] & users.kept
            if judgement.action is not Action.EVICT:
                texts.append(judgement.text)
            elif kept:
                places = ", ".join(sorted(users.places[uid]))
                texts.append(f"{pod} uses {places} and is left there: {', '.join(sorted(kept))} would not become free")
            elif users.certain and self._may_evict(task, uid, uses, by_claim=users.claimed[uid]):
                evict.append(pod)
            else:
                texts.append(f"{pod} uses {', '.join(sorted(users.places[uid]))}")
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(self._evict(task, pod)) for pod in evict]
        return texts + [text for answer in answers if (text := answer.result())]

    def _may_evict(self, task: _Task, uid: str, uses: Sequence[ClaimUse], *, by_claim: bool) -> bool:
        """Only what cannot come back: the devices are withheld, or the node takes no new pods."""
        if not self._evicts or not task.marked:
            return False
        if by_claim:
            return all(use.withheld for use in uses if uid in {consumer.uid for consumer in use.claim.pods})
        withheld = all(device.withheld for device in task.order.devices if uid in device.pods)
        return withheld and task.order.cordoned

    async def _evict(self, task: _Task, pod: Pod) -> str:
        async with self._gate:
            # The plan may be another one by now.
            if self._tasks.get(task.order.node) != task:
                return ""
            answer = await self._evictor.evict(pod)
        return terminating(pod) if not answer and self._evictor.accepted({pod.uid}) else answer


def _places(order: DrainOrder, pod: Pod, uses: Sequence[ClaimUse]) -> frozenset[str]:
    claimed = {device.address for use in uses for one in use.claim.pods if one.uid == pod.uid for device in use.devices}
    return frozenset(
        claimed | {device.address for device in order.devices if not device.pods.isdisjoint((pod.uid, pod.static_uid))}
    )


def _lacks(api: Api, right: str, error: ApiError) -> str:
    return f"who uses the devices is not known: grant {right} to {api.component} ({error.message})"
