"""Which devices stay in use whoever is evicted: nobody loses work for a device that does not become free by it.

A disruption budget is another thing: what it refuses now it may allow in a moment.
"""

from collections.abc import Collection, Iterable, Mapping


def kept_devices(users: Mapping[str, Collection[str]], stay: Iterable[str], held: Iterable[str]) -> frozenset[str]:
    """Devices with a user that no eviction moves, and those with a user that is spared for it.

    `users`: by UID of a pod, the devices that it uses. `stay`: the pods that are never evicted. `held`: devices that
    somebody has who is no pod, or whom nobody knows.
    """
    kept = set(held)
    staying = set(stay)
    while True:
        for uid in staying:
            kept.update(users.get(uid, ()))
        spared = {uid for uid, devices in users.items() if uid not in staying and not kept.isdisjoint(devices)}
        if not spared:
            return frozenset(kept)
        staying |= spared
