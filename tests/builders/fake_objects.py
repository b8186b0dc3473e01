"""What an API server keeps and how it changes: resourceVersions, history, selectors, server-side apply.

The state behind `tests.builders.fake_api`; tests may change it directly, as some other client would.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jsonpatch

from runtime.resources import Resource

Object = dict[str, Any]
T = TypeVar("T")
Name = tuple[str, str]


class Refused(Exception):  # noqa: N818 - an answer of the server
    def __init__(self, code: int, reason: str, message: str, causes: list[Object] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.causes = code, reason, message, causes or []

    def status(self) -> Object:
        details = {"causes": self.causes} if self.causes else {}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": self.code,
            "reason": self.reason,
            "message": self.message,
            "details": details,
        }


@dataclass(frozen=True)
class Step:
    """One change of one object: `before` None = created, `after` None = deleted (`last` is its final state)."""

    version: int
    resource: Resource
    before: Object | None
    after: Object | None
    last: Object


@dataclass(frozen=True)
class Selector:
    labels: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    namespace: str | None = None

    def matches(self, item: Object | None) -> bool:
        if item is None:
            return False
        metadata = item["metadata"]
        if self.namespace is not None and metadata.get("namespace") != self.namespace:
            return False
        labels = metadata.get("labels") or {}
        return all(_requirement(term, labels.get) for term in self.labels) and all(
            _requirement(term, lambda path: _at(item, path)) for term in self.fields
        )


class Objects:
    """All objects of all kinds under one resourceVersion counter, with the history that watches replay."""

    def __init__(self, first_version: int = 100) -> None:
        self.version = first_version
        self.compacted = 0
        self.steps: list[Step] = []
        self.listeners: list[Callable[[Step], None]] = []
        self._items: dict[Resource, dict[Name, Object]] = {}
        self._applied: dict[tuple[str, str, str], Object] = {}

    def items(self, resource: Resource) -> Iterator[Object]:
        found = self._items.get(resource, {})
        return (copied(found[name]) for name in sorted(found))

    def find(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        item = self._items.get(resource, {}).get((namespace or "", name))
        return copied(item) if item is not None else None

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        item = self.find(resource, name, namespace)
        if item is None:
            raise Refused(404, "NotFound", f'{resource.full_name} "{name}" not found')
        return item

    def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        item = copied(body)
        metadata = item.setdefault("metadata", {})
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise Refused(422, "Invalid", "name or generateName is required", [_cause("metadata.name")])
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        namespace = namespace or metadata.get("namespace")
        if resource.namespaced:
            metadata["namespace"] = namespace
        if self.find(resource, metadata["name"], namespace) is not None:
            raise Refused(409, "AlreadyExists", f'{resource.full_name} "{metadata["name"]}" already exists')
        item.setdefault("apiVersion", resource.api_version)
        item.setdefault("kind", resource.kind)
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata.setdefault("generation", 1)
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        return self._commit(resource, None, item)

    def replace(self, resource: Resource, body: Object, namespace: str | None = None, part: str = "") -> Object:
        metadata = body.get("metadata") or {}
        old = self.get(resource, str(metadata.get("name")), namespace or metadata.get("namespace"))
        self._check(old, metadata)
        return self._change(resource, old, copied(body), part)

    def edit(self, resource: Resource, name: str, namespace: str | None = None, **fields: Any) -> Object:
        """Set top-level fields, e.g. edit(NODES, "node-atom", spec={…}); labels go through `metadata_labels`."""
        old = self.get(resource, name, namespace)
        new = copied(old)
        for key, value in fields.items():
            target = new["metadata"] if key.startswith("metadata_") else new
            target[key.removeprefix("metadata_")] = value
        return self._change(resource, old, new, "status" if set(fields) == {"status"} else "")

    def merge_patch(
        self, resource: Resource, name: str, patch: Object, namespace: str | None = None, part: str = ""
    ) -> Object:
        old = self.get(resource, name, namespace)
        self._check(old, patch.get("metadata") or {})
        return self._change(resource, old, _merged(old, patch), part)

    def json_patch(
        self, resource: Resource, name: str, patch: list[Object], namespace: str | None = None, part: str = ""
    ) -> Object:
        old = self.get(resource, name, namespace)
        try:
            new = jsonpatch.JsonPatch(patch).apply(old)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            raise Refused(422, "Invalid", f"the server rejected our request: {error}") from error
        return self._change(resource, old, new, part)

    def apply(
        self, resource: Resource, name: str, body: Object, manager: str, namespace: str | None = None, part: str = ""
    ) -> Object:
        """Server-side apply by force. Lists are atomic, but those of conditions are maps by type."""
        old = self.find(resource, name, namespace)
        wanted = {key: copied(value) for key, value in body.items() if key not in {"apiVersion", "kind"}}
        metadata = dict(wanted.pop("metadata", {}))
        if old is None:
            if part:
                raise Refused(404, "NotFound", f'{resource.full_name} "{name}" not found')
            if metadata.get("uid"):  # a resourceVersion is no obstacle: the real server creates the object
                raise Refused(409, "Conflict", "uid mismatch: no existing object was found")
            old_or_new = self.create(resource, {"metadata": {"name": name}}, namespace)
            uid = old_or_new["metadata"]["uid"]
            self._withdraw(resource, name, namespace)
            base = old_or_new
        else:
            self._check(old, {"resourceVersion": metadata.get("resourceVersion")})
            uid, base = old["metadata"]["uid"], copied(old)
            # The status of custom resources takes any uid; everything else wants the one it has.
            custom = "." in resource.group and not resource.group.endswith(".k8s.io")
            if metadata.get("uid", uid) != uid and not (part == "status" and custom):
                raise Refused(422, "Invalid", "metadata.uid: field is immutable", [_cause("metadata.uid")])
        own = {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
        if own:
            wanted["metadata"] = own
        key = (uid, manager, part)
        others = [value for other, value in self._applied.items() if other[0] == uid and other != key]
        _drop_given_up(base, self._applied.get(key, {}), wanted, others)
        new = _applied_over(base, wanted)
        self._applied[key] = wanted
        if old is None:
            return self._commit(resource, None, new)
        return self._change(resource, old, new, part)

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        version: str | None = None,
        graceful: bool = False,
    ) -> Object:
        """``graceful``: as of a pod with grace, the object is to go, and goes with the next delete."""
        old = self.get(resource, name, namespace)
        self._check(old, {"uid": uid, "resourceVersion": version})
        if old["metadata"].get("finalizers") or graceful:
            new = copied(old)
            new["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
            return self._commit(resource, old, new) if new != old else old
        del self._items[resource][_name(old)]
        self.version += 1
        last = copied(old)
        last["metadata"]["resourceVersion"] = str(self.version)
        self._record(Step(self.version, resource, old, None, last))
        return last

    def compact(self) -> None:
        """Forget the history: watches from older versions and older continue tokens get 410."""
        self.compacted = self.version
        self.steps.clear()

    def set_back(self, version: int) -> None:
        """The server's storage is restored from a backup: the counter goes back, and with it that of each object."""
        for items in self._items.values():
            for item in items.values():
                item["metadata"]["resourceVersion"] = str(min(version, int(item["metadata"]["resourceVersion"])))
        self.version = version
        self.compacted = 0
        self.steps.clear()

    def since(self, resource: Resource, version: int) -> list[Step]:
        return [step for step in self.steps if step.version > version and step.resource == resource]

    def _check(self, old: Object, wanted: Object) -> None:
        have = old["metadata"]
        for field in ("uid", "resourceVersion"):
            if wanted.get(field) and wanted[field] != have[field]:
                text = f"the {field} in the precondition ({wanted[field]}) does not match {have[field]}"
                raise Refused(409, "Conflict", f"Operation cannot be fulfilled: {text}")

    def _change(self, resource: Resource, old: Object, new: Object, part: str) -> Object:
        """Commit `new` with what the subresource lets through; the same state again is no change."""
        if part == "status":
            new = {**copied(old), "status": new.get("status")}
        else:
            new["status"] = copied(old.get("status"))
        if new.get("status") is None:
            new.pop("status", None)
        have = old["metadata"]
        metadata = new.setdefault("metadata", {})
        for field in ("name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion"):
            if field in have:
                metadata[field] = have[field]
        new.setdefault("apiVersion", resource.api_version)
        new.setdefault("kind", resource.kind)
        if new == old:
            return old
        if new.get("spec") != old.get("spec"):
            metadata["generation"] = have.get("generation", 1) + 1
        committed = self._commit(resource, old, new)
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            return self.delete(resource, metadata["name"], metadata.get("namespace"))
        return committed

    def _commit(self, resource: Resource, old: Object | None, new: Object) -> Object:
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        new["metadata"]["managedFields"] = [{"manager": "fake", "operation": "Update"}]
        self._items.setdefault(resource, {})[_name(new)] = new
        self._record(Step(self.version, resource, copied(old), copied(new), copied(new)))
        return copied(new)

    def _withdraw(self, resource: Resource, name: str, namespace: str | None) -> None:
        del self._items[resource][(namespace or "", name)]
        self.steps.pop()
        self.version -= 1

    def _record(self, step: Step) -> None:
        self.steps.append(step)
        for listener in list(self.listeners):
            listener(step)


def copied(value: T) -> T:
    """A deep copy of JSON; several times faster than the general one."""
    if isinstance(value, dict):
        return cast(T, {key: copied(item) for key, item in value.items()})
    if isinstance(value, list):
        return cast(T, [copied(item) for item in value])
    return value


def event_for(step: Step, selector: Selector) -> Object | None:
    """The watch event that a step is to a watcher: objects may enter and leave its selector."""
    before, after = selector.matches(step.before), selector.matches(step.after)
    if after:
        return {"type": "MODIFIED" if before else "ADDED", "object": step.after}
    if before:
        gone = copied(step.last if step.after is None else step.before)
        assert gone is not None
        gone["metadata"]["resourceVersion"] = str(step.version)
        return {"type": "DELETED", "object": gone}
    return None


def _name(item: Object) -> Name:
    return item["metadata"].get("namespace") or "", item["metadata"]["name"]


def _cause(field: str) -> Object:
    return {"reason": "FieldValueRequired", "field": field, "message": "Required value"}


def _at(item: Object, path: str) -> Any:
    value: Any = item
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _requirement(term: str, lookup: Callable[[str], Any]) -> bool:
    for sign in ("!=", "==", "="):
        key, found, value = term.partition(sign)
        if found:
            return (str(lookup(key) or "") == value) is (sign != "!=")
    return lookup(term) is not None


def _merged(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copied(patch)
    result = copied(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _applied_over(base: Any, wanted: Any) -> Any:
    if isinstance(base, dict) and isinstance(wanted, dict):
        result = dict(base)
        for key, value in wanted.items():
            result[key] = _applied_over(base.get(key), value)
        return result
    if isinstance(base, list) and _by_type(base) is not None and _by_type(wanted) is not None:
        wishes = {item["type"]: item for item in wanted}
        kept = [_applied_over(item, wishes.pop(item["type"], item)) for item in base]
        return kept + list(wishes.values())
    return copied(wanted)


def _drop_given_up(base: Any, before: Any, now: Any, others: list[Any]) -> None:
    """Remove from `base` what this manager applied before, applies no longer, and no other manager applies."""
    if not isinstance(base, dict) or not isinstance(before, dict):
        return
    for key in before:
        rest = [other[key] for other in others if isinstance(other, dict) and key in other]
        if isinstance(now, dict) and key in now:
            if isinstance(base.get(key), list) and _by_type(base[key]) is not None:
                gone = (_by_type(before[key]) or set()) - (_by_type(now[key]) or set())
                gone -= {name for other in rest for name in _by_type(other) or set()}
                base[key] = [item for item in base[key] if item["type"] not in gone]
            else:
                _drop_given_up(base.get(key), before[key], now[key], rest)
        elif not rest:
            base.pop(key, None)


def _by_type(items: Any) -> set[str] | None:
    if not isinstance(items, list) or not all(isinstance(item, dict) and "type" in item for item in items):
        return None
    return {str(item["type"]) for item in items}


def encode(item: Object) -> bytes:
    return json.dumps(item, separators=(",", ":")).encode()
