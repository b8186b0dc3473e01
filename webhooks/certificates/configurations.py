"""The webhook configurations that name us: which authorities they make the API server trust, and setting that.

Of each entry `caBundle` is set and nothing else, and what Git says of it (which has no such key) is not contradicted.
Nobody stays the owner of that field: server-side apply keeps the rest of an entry of which somebody else owns a field,
so that Git could neither take an entry away nor rename it. A field without an owner goes with its entry.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runtime.api import NotFound, Object
from runtime.resources import VALIDATING_WEBHOOKS, Resource

FIELD_MANAGER = "npufleet-webhook"
"""What writes of this process are recorded under."""


@dataclass(frozen=True, slots=True)
class Target:
    """One webhook configuration that may exist."""

    resource: Resource
    name: str

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.name}"


TARGETS = (Target(VALIDATING_WEBHOOKS, "npufleet.io"),)
"""Every configuration of ours: one that was forgotten at a change of authorities would refuse everything."""


class ConfigurationApi(Protocol):
    """The calls of `Api` that this needs."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object: ...
    async def patch(
        self, resource: Resource, name: str, patch: Object | Sequence[Object], namespace: str | None = None
    ) -> Object: ...


@dataclass(frozen=True, slots=True)
class Configuration:
    """One that exists. `bundles`: the caBundle of each of its entries by name, in their order, b"" where there is none.
    `managers`: its managedFields."""

    target: Target
    resource_version: str
    bundles: Mapping[str, bytes]
    managers: Sequence[Object] = ()

    @property
    def is_owned(self) -> bool:
        """Whether a field of it is recorded as ours, and there is somebody else to leave it to."""
        return len(self._others) not in (0, len(self.managers))

    def with_bundle(self, bundle: bytes) -> list[Object]:
        """The patch that gives every entry this caBundle; only to the configuration as it was read."""
        encoded = base64.b64encode(bundle).decode()
        return [
            self._unchanged,
            *(
                {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": encoded}
                for index in range(len(self.bundles))
            ),
        ]

    def without_owner(self) -> list[Object]:
        """The patch that takes our name from the record of owners, and changes nothing else."""
        return [self._unchanged, {"op": "replace", "path": "/metadata/managedFields", "value": self._others}]

    @property
    def _others(self) -> list[Object]:
        return [one for one in self.managers if one.get("manager") != FIELD_MANAGER]

    @property
    def _unchanged(self) -> Object:
        # Writing the version that was read makes it a compare-and-swap: a `test` that fails would be no Conflict.
        return {"op": "replace", "path": "/metadata/resourceVersion", "value": self.resource_version}


async def read_configurations(api: ConfigurationApi, targets: Sequence[Target] = TARGETS) -> list[Configuration]:
    """Those of the targets that exist. Raises ApiError."""
    found = []
    for target in targets:
        try:
            found.append(_read(target, await api.get(target.resource, target.name)))
        except NotFound:
            continue
    return found


async def set_bundle(api: ConfigurationApi, configuration: Configuration, bundle: bytes) -> None:
    """Make every entry trust just this. Raises ApiError; Conflict when the configuration has changed meanwhile."""
    target = configuration.target
    changed = await api.patch(target.resource, target.name, configuration.with_bundle(bundle))
    await disown(api, _read(target, changed))


async def disown(api: ConfigurationApi, configuration: Configuration) -> None:
    """Own nothing of it. Raises ApiError; Conflict when the configuration has changed meanwhile."""
    if configuration.is_owned:
        await api.patch(configuration.target.resource, configuration.target.name, configuration.without_owner())


def bundles_of(configurations: Sequence[Configuration]) -> list[bytes]:
    """Every caBundle of every entry."""
    return [bundle for configuration in configurations for bundle in configuration.bundles.values()]


def _read(target: Target, found: Object) -> Configuration:
    metadata = found.get("metadata") or {}
    bundles = {}
    for entry in found.get("webhooks") or []:
        text = (entry.get("clientConfig") or {}).get("caBundle")
        bundles[str(entry.get("name"))] = _decoded(text)
    managers = metadata.get("managedFields") or ()
    return Configuration(target, str(metadata.get("resourceVersion")), bundles, managers)


def _decoded(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""
