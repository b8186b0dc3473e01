"""What may be there or not on an API server: calls of tests for which its absence is an answer."""

from __future__ import annotations

from typing import Any

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.errors import ApiCallError


def find(api: ApiAccess, path: str) -> dict[str, Any] | None:
    """The object, or None without one. Raises ApiCallError for every other error status."""
    try:
        found: dict[str, Any] = api.call("GET", path)
    except ApiCallError as error:
        if error.status == 404:
            return None
        raise
    return found


def delete(api: ApiAccess, path: str, options: dict[str, Any] | None = None) -> None:
    """Delete the object, if it is there. Raises ApiCallError for every other error status."""
    try:
        api.call("DELETE", path, options)
    except ApiCallError as error:
        if error.status != 404:
            raise
