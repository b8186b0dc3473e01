"""Slices that others change are put right at once, and ever later against somebody who insists."""

from itertools import pairwise

from dra_publisher.slices.pace import AT_ONCE, FIRST_PAUSE, LONGEST_PAUSE, QUIET_SECONDS, RepairPace


def fight(pace: RepairPace, seconds: float, start: float = 0.0) -> list[float]:
    """When repairs are made while somebody undoes each of them at once."""
    now, made = start, []
    while now < start + seconds:
        wait = pace.wait(now)
        if wait == 0:
            pace.repaired(now)
            made.append(now)
            wait = 0.05
        now += wait
    return made


def test_the_first_repairs_wait_for_nothing() -> None:
    assert fight(RepairPace(), 1.0)[-1] < FIRST_PAUSE
    assert len(fight(RepairPace(), 1.0)) == AT_ONCE


def test_a_fight_of_an_hour_costs_few_writes_and_is_never_given_up() -> None:
    made = fight(RepairPace(), 3600)
    assert 60 <= len(made) <= 75
    assert max(later - sooner for sooner, later in pairwise(made)) <= LONGEST_PAUSE + 0.1


def test_after_quiet_all_is_forgotten() -> None:
    pace = RepairPace()
    end = fight(pace, 600)[-1]
    assert pace.wait(end + 1) > 0
    assert pace.wait(end + QUIET_SECONDS) == 0
    assert len(fight(pace, 1.0, end + QUIET_SECONDS)) == AT_ONCE
