"""Listeners for events: each with a bounded buffer, as a netlink socket has, and told when it lost some."""

import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from node_host.host.protocol import Uevent
from simulated_node.rules.registry import rule

LOST = rule(
    "uevent.lost-when-reader-lags",
    "A reader that does not keep up loses events and is told so once; what it does read stays in order.",
    errno="ENOBUFS",
    source="netlink(7)",
)


class Subscription:
    """The buffer of one listener. ``wake`` is called, from any thread, when there is something to take."""

    def __init__(self, wake: Callable[[], None], capacity: int) -> None:
        self._wake = wake
        self._capacity = capacity
        self._lock = threading.Lock()
        self._events: deque[Uevent] = deque()
        self._end: int | None = None

    def put(self, event: Uevent) -> None:
        with self._lock:
            if self._end is None and len(self._events) >= self._capacity:
                LOST.fires()
                self._end = errno.ENOBUFS
            elif self._end is None:
                self._events.append(event)
        self._wake()

    def end(self, number: int) -> None:
        """No more events will come; the listener gets this errno after those it has."""
        with self._lock:
            self._end = self._end or number
        self._wake()

    def take(self) -> list[Uevent]:
        """What has come, perhaps nothing; OSError at the end."""
        with self._lock:
            events = list(self._events)
            self._events.clear()
            if not events and self._end is not None:
                raise OSError(self._end, os.strerror(self._end))
        return events


class Listeners:
    """All of them. Not thread-safe: the kernel calls it under its own lock."""

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []
        self._dropping = 0
        self._silently = False

    def __len__(self) -> int:
        return len(self._subscriptions)

    def add(self, wake: Callable[[], None], capacity: int) -> Subscription:
        self._subscriptions.append(made := Subscription(wake, capacity))
        return made

    def remove(self, subscription: Subscription) -> None:
        with suppress(ValueError):
            self._subscriptions.remove(subscription)

    def tell(self, events: list[Uevent]) -> None:
        for event in events:
            if self._dropping:
                self._dropping -= 1
                if not self._silently:
                    self.lose()
                continue
            for subscription in self._subscriptions:
                subscription.put(event)

    def drop(self, times: int, *, silently: bool) -> None:
        self._dropping, self._silently = times, silently

    def lose(self) -> None:
        LOST.fires()
        self.end(errno.ENOBUFS)

    def end(self, number: int) -> None:
        for subscription in self._subscriptions:
            subscription.end(number)
        self._subscriptions.clear()
