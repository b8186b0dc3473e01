"""Carries a plan out, object by object: each write is a compare-and-swap or idempotent, and none holds up another.

A change of orders uses up limits from the moment it is sent until its outcome is known. When the answer is lost, the
object is read before anything else is decided about its node.
"""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from controllers.node_policy.metrics import Figures
from controllers.node_policy.pace import BEGUN_SECONDS, COUNTS_SECONDS, has_only_begun, only_counts
from controllers.node_policy.pending import NodeWork, Pause, PolicyWork, Posted, RolloutWork
from controllers.node_policy.plan import Plan, PolicyView, SpecChange, StateView, read_state
from controllers.node_policy.plan.drains import DrainTime
from controllers.node_policy.plan.events import About, PlanEvent
from controllers.node_policy.plan.orders import Orders
from crds.models.conditions import Status, find_condition
from crds.models.node_policy import NodePolicyStatus
from runtime.api import AlreadyExists, Api, ApiError, BadRequest, Conflict, Forbidden, Invalid, NotFound, Unauthorized
from runtime.backoff import Backoff
from runtime.event_recorder import EventRecorder
from runtime.resources import CONFIG_MAPS, NAMESPACE, NODES, NPU_NODE_POLICIES, NPU_NODE_STATES
from runtime.status_writer import StatusWriter
from runtime.store import Entry, Store, parse_version
from runtime.work_queue import Retry

log = logging.getLogger(__name__)

_KINDS = {About.POLICY: NPU_NODE_POLICIES, About.NODE: NODES, About.SETTINGS: CONFIG_MAPS}
# Errors that say for certain that the write did not happen.
_REFUSED = (BadRequest, Forbidden, Invalid, NotFound, Unauthorized)


_PAUSE_SECONDS = (0.5, 20.0)


class Writer:
    """Holds the newest plan and writes it, one object at a time. `replan` is called when a plan was out of date."""

    def __init__(
        self,
        api: Api,
        states: Store[StateView],
        policies: Store[PolicyView],
        recorder: EventRecorder,
        figures: Figures,
        *,
        field_manager: str,
        may_write: Callable[[], bool],
        node_exists: Callable[[str], bool],
        replan: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.in_flight: dict[str, frozenset[str]] = {}
        """By node: policies whose limits a change uses that was sent and whose outcome is not known yet."""
        self.refused: set[str] = set()
        """Nodes whose last orders the API server would not take."""
        self._api = api
        self._states = states
        self._policies = policies
        self._recorder = recorder
        self._figures = figures
        self._manager = field_manager
        self._may_write = may_write
        self._node_exists = node_exists
        self._replan = replan
        self._clock = clock
        self._random = random.Random()  # noqa: S311 - spreads attempts, guards nothing
        self._state_status = StatusWriter(api, NPU_NODE_STATES, field_manager, fields=("rollout",))
        self._policy_status = StatusWriter(api, NPU_NODE_POLICIES, field_manager)
        self._nodes: dict[str, NodeWork] = {}
        self._policy_work: dict[str, PolicyWork] = {}
        self._doubtful: set[str] = set()
        self._pauses: dict[str, Pause] = {}
        self._failed_nodes: dict[str, tuple[object, ...]] = {}
        self._failed_policies: dict[str, NodePolicyStatus] = {}
        self._ordered: dict[str, float] = {}
        self._told: dict[str, float] = {}

    def post(self, plan: Plan, policies: Mapping[str, PolicyView], states: Mapping[str, StateView]) -> Posted:
        """Replace what was to be written by what this plan wants; `policies` and `states` are what it was made from."""
        nodes: dict[str, NodeWork] = {}
        with_node: defaultdict[str, list[PlanEvent]] = defaultdict(list)
        with_policy: defaultdict[str, list[PlanEvent]] = defaultdict(list)
        for event in plan.events:
            if event.node:
                with_node[event.node].append(event)
            elif event.about is About.POLICY:
                with_policy[event.name].append(event)
        ended: defaultdict[str, list[DrainTime]] = defaultdict(list)
        for drain in plan.drain_seconds:
            ended[drain.node].append(drain)
        for name, creation in plan.creations.items():
            nodes[name] = NodeWork(creation=creation)
        for name, change in plan.specs.items():
            if change is not None:
                nodes[name] = NodeWork(change=change)
        for name, state in plan.deletions.items():
            nodes[name] = NodeWork(deletion=state)
        for name, rollout in plan.rollouts.items():
            nodes.setdefault(name, NodeWork()).rollout = RolloutWork(
                states[name],
                rollout,
                tuple(with_node[name]),
                tuple(ended[name]),
            )
        self._nodes = nodes
        self._policy_work = {
            name: PolicyWork(
                policies[name].uid,
                status,
                tuple(with_policy[name]),
            )
            for name, status in plan.policy_statuses.items()
        }
        for event in plan.events:
            if event.about is About.SETTINGS:
                self._tell(event, {"metadata": {"name": event.name, "namespace": NAMESPACE}})
        self._failed_nodes = {name: content for name, content in self._failed_nodes.items() if name in nodes}
        self._failed_policies = {name: s for name, s in self._failed_policies.items() if name in self._policy_work}
        self.refused &= states.keys()
        now = self._clock()
        self._ordered = {name: at for name, at in self._ordered.items() if now - at < BEGUN_SECONDS}
        self._told = {name: at for name, at in self._told.items() if name in policies}
        self._pauses = {name: pause for name, pause in self._pauses.items() if name in states}
        return Posted(
            [name for name, work in nodes.items() if self._failed_nodes.get(name) != work.content()],
            [name for name, work in self._policy_work.items() if self._failed_policies.get(name) != work.status],
        )

    def withdraw_changes(self) -> list[str]:
        """Take back changes of orders that were not sent yet: the plan that is about to be made decides them anew.

        Returns the nodes for which there is nothing left to do.
        """
        withdrawn = [name for name, work in self._nodes.items() if work.change is not None]
        for name in withdrawn:
            del self._nodes[name]
        return [name for name in withdrawn if name not in self._doubtful and name not in self._failed_nodes]

    async def write_node(self, name: str) -> float | None:
        """Write what the newest plan wants for one node. Raises ApiError to be tried again.

        Returns the seconds for which that can wait, None when it is done.
        """
        self._check_leadership()
        if name in self._doubtful:
            await self._look_again(name)
            return None
        work = self._nodes.get(name)
        if work is None:
            self._failed_nodes.pop(name, None)
            return None
        if (wait := self._can_wait(name, work)) > 0:
            return wait
        try:
            await self._write(name, work)
        except ApiError:
            self._failed_nodes[name] = work.content()
            raise
        self._failed_nodes.pop(name, None)
        if self._nodes.get(name) is work:
            del self._nodes[name]
        return None

    def _can_wait(self, name: str, work: NodeWork) -> float:
        """For how many seconds: until then the node has most likely done what it was ordered."""
        ordered = self._ordered.get(name)
        alone = work.rollout is not None and not (work.creation or work.deletion or work.change)
        if ordered is None or work.rollout is None or not alone or not has_only_begun(work.rollout):
            return 0.0
        return ordered + BEGUN_SECONDS - self._clock()

    async def _write(self, name: str, work: NodeWork) -> None:
        if work.creation is not None:
            await self._create(name, work.creation)
        elif work.deletion is not None:
            await self._delete(name, work.deletion)
        elif work.change is not None:
            await self._change(name, work.change)
        elif work.rollout is not None:
            await self._write_rollout(name, work.rollout)

    async def write_policy(self, name: str) -> float | None:
        """Write the status of one policy. Raises ApiError to be tried again.

        Returns the seconds for which that can wait, None when it is done.
        """
        self._check_leadership()
        work = self._policy_work.get(name)
        if work is None:
            self._failed_policies.pop(name, None)
            return None
        entry = self._policies.entry(name)
        if entry is not None and entry.uid == work.uid:
            if entry.record is not None and only_counts(entry.record.status, work):
                wait = self._told.get(name, -COUNTS_SECONDS) + COUNTS_SECONDS - self._clock()
                if wait > 0:
                    return wait
            try:
                await self._write_status(entry, work)
            except ApiError:
                self._failed_policies[name] = work.status
                raise
        self._failed_policies.pop(name, None)
        if self._policy_work.get(name) is work:
            del self._policy_work[name]
        return None

    def _check_leadership(self) -> None:
        if not self._may_write():
            raise Retry("this process does not lead", 1.0)

    async def _create(self, name: str, spec: dict[str, Any]) -> None:
        if self._states.entry(name) is not None:
            self._replan()  # made since that plan
            return
        try:
            answer = await self._api.create(NPU_NODE_STATES, {"metadata": {"name": name}, "spec": spec})
        except AlreadyExists:
            await self._refresh(name)
        else:
            self._states.apply_event("ADDED", answer)

    async def _delete(self, name: str, planned: StateView) -> None:
        entry = self._entry_as_planned(name, planned)
        if entry is None:
            return
        if self._node_exists(name):
            self._replan()  # it came back at the last moment
            return
        version = str(entry.resource_version)
        try:
            await self._api.delete(NPU_NODE_STATES, name, uid=entry.uid, resource_version=version)
        except NotFound:
            log.info("NPUNodeState %s is gone already", name)
        except Conflict:
            await self._refresh(name)
        else:
            self._state_status.forget(entry.uid)
            log.info("NPUNodeState %s was deleted: its Node is gone for good", name)

    async def _change(self, name: str, change: SpecChange) -> None:
        entry = self._entry_as_planned(name, change.state)
        if entry is None:
            return
        pause = self._pauses.get(name) or Pause(Backoff(*_PAUSE_SECONDS, self._random))
        if (left := pause.until - self._clock()) > 0:
            raise Retry(f"{pause.backoff.failures} answers to orders for {name} were lost", left)
        spec = change.spec()
        # Everything from here on until the answer may have happened.
        self.in_flight[name] = change.charged
        try:
            answer = await self._write_spec(entry, spec)
            self._states.apply_event("MODIFIED", answer)
        except Conflict:
            self.in_flight.pop(name, None)
            await self._refresh(name)
            return
        except _REFUSED:
            self.in_flight.pop(name, None)
            self.refused.add(name)
            self._replan()
            raise
        except BaseException:
            self._doubtful.add(name)
            # The look at it that follows will succeed, so the queue alone would try again as if for the first time.
            pause.until = self._clock() + pause.backoff.next()
            self._pauses[name] = pause
            raise
        self.in_flight.pop(name, None)
        self._pauses.pop(name, None)
        self._ordered[name] = self._clock()
        self.refused.discard(name)
        self._replan()
        log.info("NPUNodeState %s has new orders, revision %s", name, spec["revision"])
        if self._orders_in(name, answer) != change.orders:
            log.warning("NPUNodeState %s held orders of another writer; they are replaced", name)
            answer = await self._replace_spec(name, spec, str(answer["metadata"]["resourceVersion"]))
            self._states.apply_event("MODIFIED", answer)

    def _orders_in(self, name: str, answer: dict[str, Any]) -> Orders:
        """The orders in an answer that the store has taken in; read again only when it holds a newer object by now."""
        entry = self._states.entry(name)
        if entry is not None and entry.record is not None and not entry.broken:
            metadata = answer["metadata"]
            if (entry.uid, entry.resource_version) == (metadata["uid"], parse_version(metadata["resourceVersion"])):
                return entry.record.orders
        return read_state(answer).orders

    async def _write_spec(self, entry: Entry[StateView], spec: dict[str, Any]) -> dict[str, Any]:
        name, version = entry.key.name, str(entry.resource_version)
        # The UID as well: an apply whose object is gone would make a new one, whatever its resourceVersion.
        metadata = {"name": name, "uid": entry.uid, "resourceVersion": version}
        try:
            return await self._api.apply(
                NPU_NODE_STATES, {"metadata": metadata, "spec": spec}, field_manager=self._manager
            )
        except Invalid as refusal:
            # A list that another operation wrote as well (a restored backup, say) cannot be emptied by an apply.
            log.warning("NPUNodeState %s: the apply was refused, replacing its spec: %s", name, refusal)
            return await self._replace_spec(name, spec, version)

    async def _replace_spec(self, name: str, spec: dict[str, Any], version: str) -> dict[str, Any]:
        """The whole spec, whoever owns which field of it; the orders are ours alone."""
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "replace", "path": "/spec", "value": spec},
        ]
        return await self._api.patch(NPU_NODE_STATES, name, patch)

    async def _write_rollout(self, name: str, work: RolloutWork) -> None:
        entry = self._entry_as_planned(name, work.state)
        if entry is None:
            return
        stands = work.state.rollout
        observed = {
            "metadata": {"name": name, "uid": entry.uid, "resourceVersion": str(entry.resource_version)},
            "status": {"rollout": stands.to_object()} if stands is not None else {},
        }
        try:
            answer = await self._state_status.write(observed, {"rollout": work.rollout.to_object()})
        except (Conflict, NotFound):
            await self._refresh(name)
            return
        if answer is None:
            return
        self._states.apply_event("MODIFIED", answer)
        for event in work.events:
            uid = work.state.node_uid if event.about is About.NODE else self._uid_of_policy(event.name)
            self._tell(event, {"metadata": {"name": event.name, "uid": uid}})
        for drain in work.drains:
            self._figures.drain_ended(drain.outcome, drain.seconds)

    async def _write_status(self, entry: Entry[PolicyView], work: PolicyWork) -> None:
        stands = entry.record.status if entry.record is not None else None
        name = entry.key.name
        observed = {
            "metadata": {"name": name, "uid": entry.uid, "resourceVersion": str(entry.resource_version)},
            "status": stands.to_object() if stands is not None else {},
        }
        try:
            # The status of a custom resource takes any UID; only the resourceVersion keeps it from a namesake.
            answer = await self._policy_status.write(observed, work.status.to_object(), compare_and_swap=True)
        except (Conflict, NotFound):
            self._policy_status.forget(entry.uid)
            await self._refresh_policy(name)
            return
        self._told[name] = self._clock()
        if answer is not None:
            self._policies.apply_event("MODIFIED", answer)
            for event in work.events:
                self._tell(event, observed)
        ready = find_condition(work.status.conditions, "Ready")
        if ready is not None and ready.status is Status.TRUE:
            self._figures.generation_ready(entry.uid, work.status.observed_generation or 0)

    async def _refresh_policy(self, name: str) -> None:
        try:
            found = await self._api.get(NPU_NODE_POLICIES, name)
        except NotFound:
            log.info("NPUNodePolicy %s is gone", name)
        else:
            self._policies.apply_event("MODIFIED", found)
        self._replan()

    def _uid_of_policy(self, name: str) -> str | None:
        entry = self._policies.entry(name)
        return entry.uid if entry is not None else None

    def _entry_as_planned(self, name: str, planned: StateView) -> Entry[StateView] | None:
        """The object as it is known now, if it still is what the plan was made from."""
        entry = self._states.entry(name)
        if entry is None or entry.record != planned:
            self._replan()
            return None
        return entry

    async def _look_again(self, name: str) -> None:
        """A change was sent and its answer lost: only the object itself tells whether it happened."""
        await self._refresh(name)
        self._doubtful.discard(name)
        self._failed_nodes.pop(name, None)
        self.in_flight.pop(name, None)

    async def _refresh(self, name: str) -> None:
        try:
            found = await self._api.get(NPU_NODE_STATES, name)
        except NotFound:
            log.info("NPUNodeState %s is gone", name)
        else:
            self._states.apply_event("MODIFIED", found)
        self._replan()

    def _tell(self, event: PlanEvent, about: Mapping[str, Any]) -> None:
        resource = _KINDS[event.about]
        say = self._recorder.warning if event.warning else self._recorder.normal
        say(resource, about, event.reason, event.message)
