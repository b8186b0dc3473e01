"""The health of devices that pods have, as the kubelet shows it in their status."""

from collections.abc import Callable, Iterable

from dra_publisher.kubelet.service import DeviceHealth
from dra_publisher.offers.offer import Offer, TaintKey

_SICK = frozenset({TaintKey.UNHEALTHY, TaintKey.DRIVER_CHANGED})


class OfferedHealth:
    """Health of what is offered: `show` is told of it after each look. A taint for new users alone is no sickness."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._devices: dict[str, tuple[DeviceHealth, ...]] = {}
        self._callbacks: list[Callable[[], None]] = []

    def show(self, offers: Iterable[Offer], told: Callable[[Offer], str] = lambda _: "") -> None:
        """What is offered now; ``told`` gives words for a device that is sick."""
        devices: dict[str, list[DeviceHealth]] = {}
        for offer in sorted(offers, key=lambda one: one.name):
            sick = any(taint.key in _SICK for taint in offer.taints)
            health = DeviceHealth(self._pool, offer.name, not sick, told(offer) if sick else "")
            devices.setdefault(offer.driver, []).append(health)
        now = {driver: tuple(found) for driver, found in devices.items()}
        if now != self._devices:
            self._devices = now
            for callback in self._callbacks:
                callback()

    def devices(self, driver: str) -> tuple[DeviceHealth, ...]:
        """All devices of the driver that pods of this node may have."""
        return self._devices.get(driver, ())

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever an answer of ``devices`` may have changed."""
        self._callbacks.append(callback)
