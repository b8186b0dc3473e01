"""A host whose clock is wrong still knows what time it is for the API server, and says that its own is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from webhooks.certificates.server_clock import MOST_SKEW, ServerClock

TRUE = datetime(2026, 1, 1, tzinfo=UTC)


def clock(skew: timedelta | None) -> ServerClock:
    return ServerClock(lambda: skew, lambda: TRUE + (skew or timedelta()))


@pytest.mark.parametrize("skew", [None, timedelta(), timedelta(seconds=-3), MOST_SKEW, -MOST_SKEW], ids=str)
def test_clock_that_is_nearly_right_is_taken_as_it_is(skew: timedelta | None) -> None:
    assert clock(skew).fault() is None
    assert clock(skew).now() == TRUE + (skew or timedelta())


@pytest.mark.parametrize("skew", [timedelta(days=31), timedelta(days=-400), timedelta(seconds=301)], ids=str)
def test_wrong_clock_is_told_and_the_api_servers_time_goes_by(skew: timedelta) -> None:
    told = clock(skew).fault()
    assert told is not None
    assert (
        f"{abs(skew).total_seconds():.0f} s {'ahead of' if skew > timedelta() else 'behind'} the API server's" in told
    )
    assert clock(skew).now() == TRUE
