"""vGPU cards and profile maps, read from the API server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from cli.devices.profiles import ProfileRow, rows_of_state
from cli.errors import CommandError
from crds.models.base import faults_of
from crds.models.profile_map import VGPUProfileMap
from runtime.api import Api, ApiError, CredentialsError
from runtime.list_watch import describe
from runtime.resources import NPU_NODE_STATES, VGPU_PROFILE_MAPS, Resource

T = TypeVar("T")

_SECONDS: Final = 30.0


async def read_rows(kubeconfig: Path | None) -> list[ProfileRow]:
    """The cards that profile writers report. Raises CommandError."""
    return [row for rows in await _list(kubeconfig, NPU_NODE_STATES, rows_of_state) for row in rows]


async def read_maps(kubeconfig: Path | None) -> tuple[VGPUProfileMap, ...]:
    """The maps by name. Raises CommandError; also for one that this release cannot read."""
    found = await _list(kubeconfig, VGPU_PROFILE_MAPS, _profile_map)
    return tuple(sorted(found, key=lambda one: one.metadata.name or ""))


def _profile_map(content: dict[str, Any]) -> VGPUProfileMap:
    try:
        return VGPUProfileMap.model_validate(content)
    except ValidationError as error:
        told = "; ".join(f"{path}: {fault}" for path, fault in faults_of(error))
        raise CommandError(f"VGPUProfileMap/{content['metadata']['name']}: {told}") from error


async def _list(kubeconfig: Path | None, resource: Resource, convert: Callable[[dict[str, Any]], T]) -> list[T]:
    try:
        async with Api.connect(kubeconfig=kubeconfig, component="npufleet", timeout_seconds=_SECONDS) as api:
            return (await api.list(resource, convert=convert)).items
    except CredentialsError as error:
        raise CommandError(str(error)) from error
    except ApiError as error:
        raise CommandError(describe(error, resource)) from error
