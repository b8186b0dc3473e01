"""The calls of `runtime.api.Api` on objects in memory, without sockets: for tests in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runtime import errors
from runtime.resources import Resource
from tests.builders.fake_objects import Object, Objects, Refused


class MemoryApi:
    """One client of `objects`. `delay` is how long an answer takes; `fault` may raise before or after a write.

    `fault("before" | "after", verb)` is called around each call.
    """

    def __init__(self, objects: Objects, *, delay: Callable[[], float] = lambda: 0.0) -> None:
        self.objects = objects
        self.delay = delay
        self.fault: Callable[[str, str], None] = lambda when, verb: None
        self.calls: list[str] = []

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        return await self._call("get", lambda: self.objects.get(resource, name, namespace))

    async def create(
        self, resource: Resource, body: Object, namespace: str | None = None, *, urgent: bool = False
    ) -> Object:
        return await self._call("create", lambda: self.objects.create(resource, body, namespace))

    async def replace(
        self, resource: Resource, body: Object, namespace: str | None = None, *, urgent: bool = False
    ) -> Object:
        return await self._call("replace", lambda: self.objects.replace(resource, body, namespace))

    async def _call(self, verb: str, act: Callable[[], Object]) -> Object:
        self.calls.append(verb)
        self.fault("before", verb)
        delay = self.delay()
        await asyncio.sleep(delay / 2)
        try:
            answer = act()
        except Refused as refusal:
            raise errors.from_status(refusal.status()) from None
        await asyncio.sleep(delay / 2)
        self.fault("after", verb)
        return answer
