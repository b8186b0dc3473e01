"""Writes the marks of a drain to Nodes: who cordoned it, what is asked of another drainer, and the cordon itself.

All in one write, and only to the Node as it was when the plan was made: a person, a kubelet or another controller that
wrote meanwhile makes the plan anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from controllers.node_policy.plan import NodeView
from controllers.node_policy.plan.drains import CORDONED_BY, DRAIN_DONE, DRAIN_REQUEST, NodeMarks
from runtime.api import Api, ApiError, Conflict, Forbidden, NotFound
from runtime.resources import NODES
from runtime.store import Store
from runtime.work_queue import Retry

log = logging.getLogger(__name__)


class NodeMarker:
    """Holds the marks that the newest plan wants and writes them, one Node at a time.

    `replan` is called when a Node is another than the plan knew; `changed` when `problem` of a Node is another.
    """

    def __init__(
        self,
        api: Api,
        nodes: Store[NodeView],
        *,
        may_write: Callable[[], bool],
        replan: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        self._api = api
        self._nodes = nodes
        self._may_write = may_write
        self._replan = replan
        self._changed = changed
        self._work: dict[str, tuple[NodeView, NodeMarks]] = {}
        self._failed: dict[str, NodeMarks] = {}
        self._problems: dict[str, str] = {}

    def problem(self, node: str) -> str:
        """What keeps this Node from being marked, "" when nothing does."""
        return self._problems.get(node, "")

    def post(self, marks: Mapping[str, NodeMarks], nodes: Mapping[str, NodeView]) -> list[str]:
        """Replace what was to be written; `nodes` are what the plan was made from. Returns whom to write now."""
        self._work = {name: (nodes[name], wanted) for name, wanted in marks.items() if name in nodes}
        self._failed = {name: failed for name, failed in self._failed.items() if name in self._work}
        for name in self._problems.keys() - self._work.keys():
            self._tell(name, "")
        return [name for name, (_, wanted) in self._work.items() if self._failed.get(name) != wanted]

    async def write(self, name: str) -> None:
        """Write the marks of one Node. Raises ApiError to be tried again."""
        if not self._may_write():
            raise Retry("this process does not lead", 1.0)
        work = self._work.get(name)
        if work is None:
            return
        planned, wanted = work
        entry = self._nodes.entry(name)
        if entry is None or entry.record != planned or entry.uid != wanted.node_uid:
            self._replan()
            return
        try:
            answer = await self._api.patch(NODES, name, _patch(wanted, str(entry.resource_version)))
        except (Conflict, NotFound) as error:
            log.info("Node %s was not marked, it has changed: %s", name, error)
            await self._refresh(name)
            return
        except ApiError as error:
            self._failed[name] = wanted
            self._tell(name, self._words(error))
            raise
        self._failed.pop(name, None)
        self._tell(name, "")
        log.info("Node %s is marked: %s", name, wanted)
        self._nodes.apply_event("MODIFIED", answer)
        self._replan()

    async def _refresh(self, name: str) -> None:
        try:
            found = await self._api.get(NODES, name)
        except NotFound:
            log.info("Node %s is gone", name)
        else:
            self._nodes.apply_event("MODIFIED", found)
        self._replan()

    def _words(self, error: ApiError) -> str:
        if isinstance(error, Forbidden) and "cannot patch" in error.message:
            return f"the Node cannot be marked: grant patch on nodes to {self._api.component} ({error.message})"
        return f"the Node cannot be marked: {error.message}"

    def _tell(self, name: str, problem: str) -> None:
        if self._problems.get(name, "") == problem:
            return
        if problem:
            self._problems[name] = problem
        else:
            del self._problems[name]
        self._changed()


def _patch(wanted: NodeMarks, version: str) -> dict[str, Any]:
    """A merge patch, in which null takes away what is there."""
    annotations: dict[str, str | None] = {
        CORDONED_BY: wanted.cordoned_by or None,
        DRAIN_REQUEST: wanted.drain_request or None,
    }
    if wanted.drain_done is not None:
        annotations[DRAIN_DONE] = wanted.drain_done or None
    patch: dict[str, Any] = {
        "metadata": {"uid": wanted.node_uid, "resourceVersion": version, "annotations": annotations}
    }
    if wanted.unschedulable is not None:
        patch["spec"] = {"unschedulable": True if wanted.unschedulable else None}
    return patch
