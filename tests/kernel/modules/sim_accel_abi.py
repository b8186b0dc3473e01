"""The calls of the test accelerator as numbers and layouts; sim_accel/sim_accel.h in Python.

A test compares each with what a compiler makes of the header.
"""

from __future__ import annotations

import struct
from typing import Final

DRIVER_NAME: Final = "sim_accel"
# Major number of accelerator nodes, whatever their driver (Documentation/accel/introduction.rst).
ACCEL_MAJOR: Final = 261

# _IOC(direction, 'd', DRM_COMMAND_BASE + number, size)
SUBMIT: Final = 0x40086440
ALLOC: Final = 0xC0106441
FREE: Final = 0x40086442
WAIT: Final = 0x40106443
RELEASE: Final = 0xC0106444
FAIL: Final = 0x40086445

SUBMIT_LAYOUT: Final = struct.Struct("=II")  # jobs, busy_us
ALLOC_LAYOUT: Final = struct.Struct("=QII")  # size in bytes, handle (out), 0
FREE_LAYOUT: Final = struct.Struct("=II")  # handle, 0
WAIT_LAYOUT: Final = struct.Struct("=Qq")  # point, deadline in ns of CLOCK_MONOTONIC
RELEASE_LAYOUT: Final = struct.Struct("=QQ")  # steps, point (out)
FAIL_LAYOUT: Final = struct.Struct("=II")  # error number, 0

CALLS: Final = {
    "submit": (SUBMIT, SUBMIT_LAYOUT),
    "alloc": (ALLOC, ALLOC_LAYOUT),
    "free": (FREE, FREE_LAYOUT),
    "wait": (WAIT, WAIT_LAYOUT),
    "release": (RELEASE, RELEASE_LAYOUT),
    "fail": (FAIL, FAIL_LAYOUT),
}
# Kinds that the driver's table of calls has besides.
OTHER, FOREIGN = "other", "foreign"

MAX_BUSY_US: Final = 1_000_000
MAX_ERROR: Final = 133
