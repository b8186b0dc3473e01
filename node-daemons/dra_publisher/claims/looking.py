"""The look at live devices before claims on them are recorded: a device that hangs costs no claim on another."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from dra_publisher.claims.lock import to_its_end
from dra_publisher.claims.recording import Looks
from dra_publisher.claims.shape import Wanted, look_at_all, nodes_of, why_not
from dra_publisher.claims.work import look_then_write
from node_host.bounded_call import BoundedCalls, HungError
from node_host.host import Host

T = TypeVar("T")

LOOK_SECONDS: Final = 5.0


class DeviceLooks:
    """Looks at one host; ``calls`` are those at devices that are known to hang."""

    def __init__(self, host: Host, calls: BoundedCalls) -> None:
        self._host = host
        self._calls = calls
        self._hung: set[str] = set()

    async def then_write(self, wanted: Sequence[Wanted], write: Callable[[Looks], T]) -> T:
        """What ``write`` makes of what is seen. It is waited for, also by a caller that is cancelled.

        In one thread while no device is known to hang; else each look in its own.
        """
        if self._hung.isdisjoint(one.address for one in wanted):
            try:
                look = partial(look_at_all, self._host, wanted)
                return await look_then_write(look, write, seconds=LOOK_SECONDS)
            except HungError:
                self._hung |= {one.address for one in wanted}
        looks = await self.each(wanted)
        self._hung -= {one.address for one, seen in looks.items() if isinstance(seen, tuple)}
        return await to_its_end(partial(write, looks))

    async def each(self, wanted: Sequence[Wanted]) -> Looks:
        """Each look in a thread of its own."""
        by_key = {
            f"{one.address} {one.kind} {one.backend} {one.vendor}:{one.model} {one.profile}": one for one in wanted
        }
        calls = {key: partial(nodes_of, self._host, one) for key, one in by_key.items()}
        found: dict[Wanted, tuple[str, ...] | str] = {}
        for key, result in (await self._calls.each(calls)).items():
            found[by_key[key]] = result if isinstance(result, tuple) else why_not(by_key[key], result)
        return found
