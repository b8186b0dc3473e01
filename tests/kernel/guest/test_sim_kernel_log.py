"""A complaint of the kernel fails the test during which it came."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel.modules.kernel_log import no_complaints

LOG = Path("/dev/kmsg")


def test_a_complaint_is_found() -> None:
    LOG.write_text("<4>before: WARNING: not ours\n")
    with pytest.raises(AssertionError, match="planted by a test"), no_complaints():
        LOG.write_text("<4>planted by a test: WARNING: no fault of the kernel\n")


def test_an_ordinary_message_is_none() -> None:
    with no_complaints():
        LOG.write_text("<4>planted by a test: all is well\n")
