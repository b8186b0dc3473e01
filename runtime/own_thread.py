"""Work that may never come back, in a thread of its own: it takes no place of a pool, and no process waits for it."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(name: str, work: Callable[[], T]) -> asyncio.Future[T]:
    """What ``work`` returns or raises. It cannot be taken back: whoever gives up waiting only does not hear of it. How
    many there are is the caller's to bound. The pools of the standard library are joined when the interpreter ends,
    however long that takes; these are not.

    Wait with `asyncio.wait`. `asyncio.timeout` may report the deadline of work that has ended in the same turn of the
    loop, and whoever is cancelled while awaiting the future itself cancels it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def succeed(result: T) -> None:
        if not done.done():
            done.set_result(result)

    def fail(error: BaseException) -> None:
        if not done.done():
            done.set_exception(error)
            done.exception()  # heard of, even when nobody waits any more

    def run() -> None:
        try:
            end = partial(succeed, work())
        except BaseException as error:
            end = partial(fail, error)
        with contextlib.suppress(RuntimeError):  # the loop may be gone by now
            loop.call_soon_threadsafe(end)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done
