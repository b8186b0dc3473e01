"""When to look at the host again: the kernel's own events, and whenever some of them may have been lost.

An event is only a reason to look; what is done follows from what is seen. So losing events costs a look, nothing else.
"""

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from node_host.host import Host, Uevent

_log = logging.getLogger(__name__)

_SUBSYSTEMS: Final = frozenset({"pci", "vfio", "vfio-dev", "mdev", "module", "drivers"})
_BELOW_PCI: Final = "/devices/pci"
_FIRST_PAUSE_SECONDS: Final = 0.2
_LONGEST_PAUSE_SECONDS: Final = 10.0


def concerns_devices(event: Uevent) -> bool:
    """Whether PCI functions, what hangs on them, or their drivers may have changed; pods' virtual links do not."""
    return event.subsystem in _SUBSYSTEMS or event.devpath.startswith(_BELOW_PCI)


async def watch_host(
    host: Host, wake: Callable[[], None], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Call ``wake`` for each event that concerns devices, and once after any gap; runs until cancelled."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            async with host.events() as events:
                wake()
                pause = _FIRST_PAUSE_SECONDS
                async for event in events:
                    if concerns_devices(event):
                        wake()
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                _log.info("Kernel events were lost: looking at everything again")
                continue
            if pause == _FIRST_PAUSE_SECONDS:
                _log.warning("Kernel events cannot be read, looking from time to time only: %s", error)
        await sleep(pause)
        pause = min(_LONGEST_PAUSE_SECONDS, 2 * pause)
