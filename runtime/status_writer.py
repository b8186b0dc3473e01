"""Writes status by server-side apply, and writes nothing when nothing changed.

One field manager per writer: managers keep each other's subtrees, and fields that a manager stops applying go away.
Many writers share one object (NPUNodeState), so each names the top-level status fields that are its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from crds.models.conditions import same_status
from runtime.api import Api, Conflict, Object
from runtime.resources import Resource
from runtime.store import parse_version


class StatusWriter:
    """Status of one kind under one field manager.

    `fields` are the top-level fields of status that belong to this writer; None: all of them.
    """

    def __init__(
        self,
        api: Api,
        resource: Resource,
        field_manager: str,
        *,
        fields: Collection[str] | None = None,
    ) -> None:
        self._api = api
        self._resource = resource
        self._manager = field_manager
        self._fields = None if fields is None else frozenset(fields)
        self._written: dict[str, tuple[int, Object]] = {}

    async def write(
        self, observed: Mapping[str, Any], status: Mapping[str, Any], *, compare_and_swap: bool = False
    ) -> Object | None:
        """Make the writer's part of status equal to `status`; returns the object as written, None if it was equal.

        `observed` is the object as last read: metadata (name, namespace, uid, resourceVersion) and status. Conditions
        in `status` must already be merged with the observed ones, so that lastTransitionTime moves on a change only.
        `compare_and_swap` makes it fail with Conflict when anything in the object changed since `observed`. Without
        it, a write that met another incarnation of the name is Conflict too, but it has happened: the API server
        ignores metadata.uid in the status of custom resources (tried on 1.37). Reconcile again, with the new object.
        Raises NotFound when the object is gone, ValueError for a field that is not this writer's.
        """
        desired = _without_none(status)
        if self._fields is not None and not self._fields.issuperset(desired):
            strange = sorted(set(desired) - self._fields)
            raise ValueError(f"status fields {strange} do not belong to field manager {self._manager}")
        metadata = observed["metadata"]
        uid = str(metadata["uid"])
        if same_status(self._own(self._latest(uid, observed)), desired):
            return None
        target = {key: metadata[key] for key in ("name", "namespace", "uid") if metadata.get(key)}
        if compare_and_swap:
            target["resourceVersion"] = metadata["resourceVersion"]
        answer = await self._api.apply(
            self._resource,
            {"metadata": target, "status": desired},
            field_manager=self._manager,
            subresource="status",
        )
        written = answer.get("metadata") or {}
        if written.get("uid") != uid:
            text = f"{self._resource.full_name} {metadata['name']} is another object now (UID {written.get('uid')})"
            raise Conflict(409, "Conflict", text)
        version = parse_version(written.get("resourceVersion"))
        self._written[uid] = (version, answer.get("status") or {})
        return answer

    def forget(self, uid: str) -> None:
        """The object is gone: what was written to it need not be remembered."""
        self._written.pop(uid, None)

    def _latest(self, uid: str, observed: Mapping[str, Any]) -> Mapping[str, Any]:
        """The status to compare with: our own last write as long as the caller's copy is older than it.

        Without it a caller whose watch lags would find its old wish in its old copy, and leave the newer one standing.
        """
        written = self._written.get(uid)
        if written is not None:
            version, status = written
            if parse_version(observed["metadata"].get("resourceVersion")) < version:
                return status
            del self._written[uid]
        return observed.get("status") or {}

    def _own(self, status: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._fields is None:
            return status
        return {key: value for key, value in status.items() if key in self._fields}


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in value]
    return value
