"""The Node that runs here, by its UID: orders for another node, or another incarnation of it, are not followed."""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from runtime.errors import ApiError, NotFound
from runtime.resources import NODES, Resource

_log = logging.getLogger(__name__)


class Reader(Protocol):
    """The call of the API client that is needed here."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        """One object."""
        ...


class NodeIdentity:
    """Reads the Node when orders name a UID that is not known to be its own; an unreachable API keeps what is known.

    A UID changes only when somebody deletes the Node, so one that was confirmed stays good while nobody can be asked.
    """

    def __init__(self, api: Reader, node: str) -> None:
        self._api = api
        self._node = node
        self._uid: str | None = None
        self.extended: Mapping[str, str] = {}
        """The extended resources that the Node had when it was read last."""

    async def uid(self, ordered: str, *, again: bool = False) -> str | None:
        """The UID, or None when it is not known. ``again`` asks the API even when orders and memory agree."""
        if self._uid is not None and self._uid == ordered and not again:
            return self._uid
        try:
            node = await self._api.get(NODES, self._node)
        except NotFound:
            _log.warning("Node %s does not exist: nothing is changed", self._node)
            self._uid = None
        except ApiError as error:
            _log.warning("Node %s could not be read: %s", self._node, error)
        else:
            uid = (node.get("metadata") or {}).get("uid")
            self._uid = uid if isinstance(uid, str) and uid else None
            self.extended = extended_resources(node)
        return self._uid


def extended_resources(node: Mapping[str, Any]) -> dict[str, str]:
    """What a Node offers to pods beside its processors, memory and the like: amounts by `domain/resource`."""
    allocatable = (node.get("status") or {}).get("allocatable")
    known = allocatable if isinstance(allocatable, dict) else {}
    return {str(name): str(amount) for name, amount in known.items() if "/" in str(name)}
