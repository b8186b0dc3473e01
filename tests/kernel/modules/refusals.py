"""Expecting a refusal of the kernel, without pytest: a forked child has none."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator


@contextlib.contextmanager
def refused(number: int) -> Iterator[None]:
    """Raises AssertionError unless the block raises OSError with this errno."""
    try:
        yield
    except OSError as error:
        assert error.errno == number, (
            f"{errno.errorcode.get(error.errno or 0)} instead of {errno.errorcode.get(number)}"
        )
    else:
        raise AssertionError(f"not refused with {errno.errorcode.get(number)}")
