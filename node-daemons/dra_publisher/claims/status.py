"""`status.devices[]` of claims: what the publisher has to say of each device that it prepared, for whoever looks.

Written behind the answer to the kubelet, which does not wait for it: nothing depends on it, and a claim that is gone,
or a server that does not take it, ends it. Since 1.36 the API server wants, beside `patch` of resourceclaims/status,
the verb `associated-node:patch` of resourceclaims/driver, and a token that is bound to the node of the allocation.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from dra_publisher.claims.api import ClaimsApi
from node_host.evidence.checkpoint import PreparedClaim, PreparedDevice
from runtime.errors import ApiError, Forbidden
from runtime.resources import RESOURCE_CLAIMS

READY: Final = "Ready"
PREPARED: Final = "Prepared"
_ATTEMPTS: Final = 3
_PAUSE: Final = 2.0
_BEHIND: Final = 1.0
_log = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


def devices_of(claim: PreparedClaim, at: str) -> list[dict[str, Any]]:
    """The list as it is applied: one field manager writes what all drivers of this publisher say of a claim."""
    return [_device(device, at) for device in claim.devices]


def is_told(claim: PreparedClaim, observed: Mapping[str, Any]) -> bool:
    """Whether the claim as the API server has it says so already."""
    status = observed.get("status")
    told = status.get("devices") if isinstance(status, Mapping) else None
    if not isinstance(told, list):
        return False
    found = {_key(one): _said(one) for one in told if isinstance(one, Mapping)}
    return all(found.get(_key(one)) == _said(one) for one in devices_of(claim, ""))


class ClaimStatuses:
    """Those that wait to be written; ``run`` writes them, the newest word for each claim."""

    def __init__(
        self,
        api: ClaimsApi,
        field_manager: str,
        *,
        now: Callable[[], datetime] = _now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._manager = field_manager
        self._now = now
        self._sleep = sleep
        self._waiting: dict[str, PreparedClaim] = {}
        self._wake = asyncio.Event()
        self._is_forbidden = False

    def tell(self, claim: PreparedClaim) -> None:
        """Say it as soon as there is time."""
        self._waiting[claim.uid] = claim
        self._wake.set()

    def correct(self, uid: str, claim: PreparedClaim | None) -> None:
        """What is left to say of a claim, if anything of it still waits: parts of it were taken back, or all (None)."""
        if self._waiting.pop(uid, None) is not None and claim is not None:
            self.tell(claim)

    async def run(self) -> None:
        """Write what waits, until cancelled."""
        while True:
            await self._wake.wait()
            await self._sleep(
                _BEHIND
            )  # behind the rest of the pod's start; a claim that is taken back at once needs none
            await self.write_all()

    async def write_all(self) -> None:
        """Write what waits now."""
        self._wake.clear()
        while self._waiting:
            uid = next(iter(self._waiting))
            await self._write(self._waiting.pop(uid))

    async def _write(self, claim: PreparedClaim) -> None:
        at = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
            "status": {"devices": devices_of(claim, at)},
        }
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._api.apply(RESOURCE_CLAIMS, body, field_manager=self._manager, subresource="status")
                self._is_forbidden = False
                return
            except ApiError as error:
                if claim.uid in self._waiting:
                    return
                if not error.transient or attempt == _ATTEMPTS:
                    self._give_up(claim, error)
                    return
                await self._sleep(max(_PAUSE * attempt, error.retry_after or 0.0))

    def _give_up(self, claim: PreparedClaim, error: ApiError) -> None:
        if isinstance(error, Forbidden):
            if not self._is_forbidden:
                _log.warning("The status of claims is not written: %s", error)
            self._is_forbidden = True
        elif error.status not in (404, 409, 422):  # gone, or another claim of that name
            _log.warning("The status of %s was not written: %s", claim.title, error)


def _device(device: PreparedDevice, at: str) -> dict[str, Any]:
    value: dict[str, Any] = {
        "driver": device.driver,
        "pool": device.pool,
        "device": device.device,
        "conditions": [
            {
                "type": READY,
                "status": "True",
                "reason": PREPARED,
                "message": f"{device.address} is prepared",
                "lastTransitionTime": at,
            }
        ],
    }
    if device.share_id is not None:
        value["shareID"] = device.share_id
    return value


def _key(device: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(device.get(name) for name in ("driver", "pool", "device", "shareID"))


def _said(device: Mapping[str, Any]) -> Any:
    conditions = device.get("conditions")
    if not isinstance(conditions, list):
        return None
    told = (one for one in conditions if isinstance(one, Mapping) and one.get("type") == READY)
    return next((tuple(one.get(name) for name in ("status", "reason", "message")) for one in told), None)
