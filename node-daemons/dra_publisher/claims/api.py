"""What of the API server the handling of claims needs (`runtime.api.Api` offers it)."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from runtime.api import Listing, Object
from runtime.resources import Resource

T = TypeVar("T")


class ClaimsApi(Protocol):
    """Reads are quorum reads, and every call has a deadline; all raise ApiError."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object: ...

    async def list(
        self, resource: Resource, namespace: str | None = None, *, convert: Callable[[Object], T]
    ) -> Listing[T]: ...

    async def apply(
        self, resource: Resource, body: Object, *, field_manager: str | None = None, subresource: str | None = None
    ) -> Object: ...
