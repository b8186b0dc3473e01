"""Each limit of the API on a device: what just fits is taken, what is just beyond it is named."""

import pytest

from dra_publisher.offers.limits import fault_of, fault_of_driver
from tests.builders.device_limits import LIMITS, Limit, limited
from tests.builders.offers import offer


@pytest.mark.parametrize("limit", LIMITS)
def test_what_fits_is_taken_and_what_is_beyond_is_named(limit: Limit) -> None:
    assert fault_of(limited(limit.fits)) is None
    assert limit.words in (fault_of(limited(limit.beyond)) or "")


@pytest.mark.parametrize("name", ["npufleet.io", "a", "a" * 63, "npu.rebellions.ai", "a-b.c"])
def test_names_of_drivers_are_subdomains(name: str) -> None:
    assert fault_of_driver(name) is None


@pytest.mark.parametrize("name", ["", "a" * 64, "NPU.io", "a..b", ".a", "a.", "-a", "a_b", "a/b"])
def test_other_names_of_drivers_are_refused(name: str) -> None:
    assert "no DNS subdomain" in (fault_of_driver(name) or "")


def test_all_faults_of_a_device_are_told_at_once() -> None:
    text = fault_of(offer(attributes={"1a": 1, "b": "x" * 65}, capacity={"memory": "much"})) or ""
    assert ["1a" in text, "65 bytes" in text, "much" in text] == [True, True, True]
