"""Shifts the wall clock of a Python process by the seconds in a file, read at each look: the clock can jump under it.

Imported by the interpreter itself when this folder is on PYTHONPATH; clocks that only go forward are left alone, as
they are on a machine whose time is set.
"""

import datetime as _module
import os
import time as _time

_FILE = os.environ.get("NPUFLEET_TEST_CLOCK_SHIFT", "")
_real_time, _real_time_ns = _time.time, _time.time_ns
_real = _module.datetime


def _shift() -> float:
    try:
        with open(_FILE) as file:  # noqa: PTH123 - runs before anything else is imported
            return float(file.read() or 0)
    except (OSError, ValueError):
        return 0.0


class _Kind(type):
    def __instancecheck__(cls, found: object) -> bool:
        return isinstance(found, _real)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, _real)


class _Shifted(_real, metaclass=_Kind):
    """`datetime` whose `now` looks at the shifted clock."""

    @classmethod
    def now(cls, tz: _module.tzinfo | None = None) -> _real:  # type: ignore[override]
        return _real.fromtimestamp(_time.time(), tz)

    @classmethod
    def utcnow(cls) -> _real:  # type: ignore[override]
        return _real.fromtimestamp(_time.time(), _module.UTC).replace(tzinfo=None)


if _FILE:
    _time.time = lambda: _real_time() + _shift()
    _time.time_ns = lambda: _real_time_ns() + int(_shift() * 1e9)
    _Shifted.__name__ = _Shifted.__qualname__ = "datetime"
    _module.datetime = _Shifted  # type: ignore[misc]
