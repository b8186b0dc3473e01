"""A Secret and webhook configurations in memory, as an API server keeps them: for rotations in virtual time.

What an API server's webhook client believes is a configuration as it stood a moment ago: `believed` tells it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from runtime import errors
from runtime.api import Object
from runtime.resources import NAMESPACE, SECRETS, VALIDATING_WEBHOOKS, Resource
from webhooks.certificates.configurations import FIELD_MANAGER, Target
from webhooks.certificates.rotation import SECRET

VALIDATING = Target(VALIDATING_WEBHOOKS, "npufleet.io")


class Died(BaseException):
    """The process has just been killed."""


class WebhookCluster:
    """`fault("before" | "after", verb, name)` is called around each call, and may raise."""

    def __init__(
        self, clock: Callable[[], float], *, entries: tuple[str, ...] = ("objects.npufleet.io", "b.x.y")
    ) -> None:
        self._clock = clock
        self._version = 1
        self._objects: dict[tuple[Resource, str], Object] = {}
        self._history: dict[str, list[tuple[float, bytes]]] = {}
        self.writes: list[str] = []
        self.fault: Callable[[str, str, str], None] = lambda when, verb, name: None
        self.put(SECRETS, {"metadata": {"name": SECRET, "namespace": NAMESPACE}, "type": "Opaque"})
        self.put(VALIDATING_WEBHOOKS, configuration(VALIDATING.name, entries))

    def put(self, resource: Resource, body: Object) -> None:
        """As another client writes it."""
        self._version += 1
        item = copy.deepcopy(body)
        item["metadata"] |= {"resourceVersion": str(self._version)}
        item["metadata"].setdefault("uid", f"uid-{self._version}")
        self._objects[resource, item["metadata"]["name"]] = item
        if resource is not SECRETS:
            self._history.setdefault(item["metadata"]["name"], []).append((self._clock(), copy.deepcopy(item)))  # type: ignore[arg-type]

    def remove(self, resource: Resource, name: str) -> None:
        del self._objects[resource, name]

    def find(self, resource: Resource, name: str) -> Object:
        return copy.deepcopy(self._objects[resource, name])

    def believed(self, name: str, seconds_ago: float) -> Object:
        """The configuration as it stood so long ago (or as it first was)."""
        moment = self._clock() - seconds_ago
        known = self._history[name]
        found: Any = next((item for at, item in reversed(known) if at <= moment), known[0][1])
        return dict(found)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        self.fault("before", "get", name)
        if (resource, name) not in self._objects:
            raise _refused(404, "NotFound", f'{resource.full_name} "{name}" not found')
        found = self.find(resource, name)
        self.fault("after", "get", name)
        return found

    async def replace(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        name = body["metadata"]["name"]
        self.fault("before", "replace", name)
        self._check(resource, name, body["metadata"])
        self.put(resource, body)
        self.writes.append(f"replace {name}")
        self.fault("after", "replace", name)
        return self.find(resource, name)

    async def patch(
        self, resource: Resource, name: str, patch: Object | Sequence[Object], namespace: str | None = None
    ) -> Object:
        """A JSON patch; whoever changes more than the record of owners is recorded in it."""
        assert not isinstance(patch, dict)
        self.fault("before", "patch", name)
        self._check(resource, name, {})
        item = self.find(resource, name)
        paths = []
        for operation in patch:
            *steps, last = operation["path"].removeprefix("/").split("/")
            holder: Any = item
            for step in steps:
                holder = holder[int(step)] if isinstance(holder, list) else holder[step]
            assert operation["op"] == "add" or last in holder
            holder[last] = operation["value"]
            paths.append(operation["path"])
        self._check(resource, name, item["metadata"])
        if any(not path.startswith("/metadata/") for path in paths):
            managers = item["metadata"].setdefault("managedFields", [])
            if all(one["manager"] != FIELD_MANAGER for one in managers):
                managers.append({"manager": FIELD_MANAGER, "operation": "Update"})
        self.put(resource, item)
        self.writes.append(f"patch {name}")
        self.fault("after", "patch", name)
        return self.find(resource, name)

    def _check(self, resource: Resource, name: str, metadata: Object) -> None:
        now = self._objects.get((resource, name))
        if now is None:
            raise _refused(404, "NotFound", f'{resource.full_name} "{name}" not found')
        for key in ("uid", "resourceVersion"):
            if metadata.get(key) not in (None, now["metadata"][key]):
                raise _refused(409, "Conflict", "the object has been modified")


def configuration(name: str, entries: tuple[str, ...]) -> Object:
    """A webhook configuration as Git has it: without any caBundle."""
    service = {"name": "npufleet-webhook", "namespace": NAMESPACE}
    return {
        "metadata": {"name": name, "managedFields": [{"manager": "git", "operation": "Apply"}]},
        "webhooks": [{"name": entry, "clientConfig": {"service": service}} for entry in entries],
    }


def _refused(code: int, reason: str, message: str) -> errors.ApiError:
    return errors.from_status({"code": code, "reason": reason, "message": message})
