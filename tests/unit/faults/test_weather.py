"""Faults strike where and when their plan says, and are counted; the same seed draws the same ones."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.builders.fault_proxy import Fault, Kind, Verb, Weather, draw
from tests.builders.fault_proxy.requests import Asked, asked
from tests.builders.fault_proxy.streams import Ended, Stream, Trouble
from tests.cluster.faults.matrix import QUICK, SLOW, case, sample, whole
from tests.cluster.faults.scenarios import SCENARIOS
from tests.cluster.faults.tally import Tally

STATES = "npunodestates"
WRITE = Asked(Verb.WRITE, STATES, "flt-00")
LIST = Asked(Verb.LIST, STATES)


def test_a_seed_draws_the_same_fault_again_and_another_seed_another() -> None:
    assert draw(Kind.HANG, "one") == draw(Kind.HANG, "one")
    drawn = {draw(Kind.ERROR, number) for number in range(50)}
    assert len({(fault.plural, fault.verb) for fault in drawn}) > 5
    assert all(draw(kind, number).times >= 1 for kind in Kind for number in range(20))


def test_the_sample_deals_every_scenario_and_every_kind_and_the_matrix_all_pairs() -> None:
    cases = sample()
    assert {each.scenario for each in cases} == {scenario.name for scenario in SCENARIOS}
    assert {kind for each in cases for kind in each.kinds} == set(Kind)
    everything = list(whole(1))
    assert len(everything) >= 200
    assert len({each.id for each in everything}) == len(everything)
    pairs = {(each.scenario, each.kinds[0]) for each in everything if len(each.kinds) == 1}
    assert pairs >= {(scenario.name, kind) for scenario in SCENARIOS for kind in QUICK}
    assert {kind for _, kind in pairs} >= set(SLOW)
    assert case("create", [Kind.CUT], "x") == case("create", [Kind.CUT], "x")


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/api/v1/nodes", {}, Asked(Verb.LIST, "nodes")),
        ("GET", "/api/v1/nodes/a", {}, Asked(Verb.GET, "nodes", "a")),
        ("GET", "/api/v1/nodes", {"watch": "true"}, Asked(Verb.WATCH, "nodes")),
        ("GET", "/api/v1/namespaces/x/configmaps", {"watch": "1"}, Asked(Verb.WATCH, "configmaps")),
        (
            "PATCH",
            "/apis/npufleet.io/v1alpha1/npunodestates/a/status",
            {},
            Asked(Verb.WRITE, STATES, "a", "status"),
        ),
        (
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/x/leases/l",
            {},
            Asked(Verb.WRITE, "leases", "l"),
        ),
        ("GET", "/version", {}, Asked(Verb.LIST, "")),
    ],
)
def test_requests_are_told_apart(method: str, path: str, query: dict[str, str], expected: Asked) -> None:
    assert asked(method, path, query) == expected


def test_a_fault_waits_for_its_write_and_strikes_as_often_as_planned() -> None:
    weather = Weather([Fault(Kind.ERROR, STATES, Verb.LIST, after=2, times=2)])
    weather.begin()
    assert weather.strikes(LIST) is None
    for _ in range(2):
        weather.wrote("PATCH x", WRITE, 200)
    assert weather.strikes(Asked(Verb.LIST, "nodes")) is None
    assert [weather.strikes(LIST) is not None for _ in range(3)] == [True, True, False]
    assert weather.hits == {Kind.ERROR: 2}
    assert weather.pending == []


def test_nothing_strikes_before_the_scenario_begins_and_only_writes_that_took_effect_count() -> None:
    weather = Weather([Fault(Kind.ERROR, STATES, Verb.LIST), Fault(Kind.KILL_UNSENT, verb=Verb.WRITE, after=1)])
    assert weather.strikes(LIST) is None and weather.strikes(WRITE) is None
    weather.wrote("PATCH x", WRITE, 409)
    weather.wrote("PUT lease", Asked(Verb.WRITE, "leases", "l"), 200)
    assert (weather.writes, weather.refused) == ([], 1)
    weather.begin()
    assert weather.strikes(Asked(Verb.WRITE, "leases", "l")) is None
    found = weather.strikes(WRITE)
    assert found is not None and found.kind is Kind.KILL_UNSENT


def test_a_dead_kind_is_refused_until_it_is_revived() -> None:
    weather = Weather([Fault(Kind.DEAD, STATES)])
    weather.begin()
    for _ in range(3):
        found = weather.strikes(LIST)
        assert found is not None and found.kind is Kind.FORBIDDEN
    weather.revive(STATES)
    assert weather.strikes(LIST) is None
    assert weather.hits == {Kind.DEAD: 1}


# Streams.


def line(number: int, kind: str = "MODIFIED") -> bytes:
    return json.dumps({"type": kind, "object": {"n": number}}, separators=(",", ":")).encode() + b"\n"


def numbers(written: list[bytes]) -> list[object]:
    events = [json.loads(each) for each in b"".join(written).splitlines() if each.endswith(b"}")]
    return [event["object"].get("n", event["object"].get("code")) for event in events]


async def through(
    troubles: list[Trouble], lines: int = 6, act: Callable[[Stream], Coroutine[Any, Any, None]] | None = None
) -> tuple[list[bytes], Counter[Kind], bool | None]:
    """What comes out of a stream; the last value says whether it was cut (None: it ended by its own)."""
    written: list[bytes] = []
    hits: Counter[Kind] = Counter()

    async def write(data: bytes) -> None:
        written.append(data)

    stream = Stream(STATES, write, on_hit=lambda kind: hits.update([kind]), rng=random.Random(4))
    for trouble in troubles:
        stream.trouble(trouble)
    for number in range(lines):
        stream.line(line(number))
    stream.line(None)
    try:
        await asyncio.wait_for(stream.run(), 10)
    except Ended as end:
        return written, hits, end.cut
    return written, hits, None


async def test_an_untroubled_stream_passes_everything_on() -> None:
    written, hits, cut = await through([])
    assert (numbers(written), hits, cut) == ([0, 1, 2, 3, 4, 5], {}, False)


async def test_duplicates_come_at_once_and_once_more_after_the_next() -> None:
    written, hits, _ = await through([Trouble(Kind.DUPLICATE, times=1)])
    assert numbers(written) == [0, 0, 1, 0, 2, 3, 4, 5]
    assert hits == {Kind.DUPLICATE: 1}


async def test_reordered_events_are_all_there_in_another_order() -> None:
    written, hits, _ = await through([Trouble(Kind.REORDER, times=1, seconds=0.05)])
    assert numbers(written) != [0, 1, 2, 3, 4, 5]
    assert sorted(map(int, map(str, numbers(written)))) == [0, 1, 2, 3, 4, 5]
    assert hits == {Kind.REORDER: 1}


async def test_dropped_events_are_lost_and_then_the_stream_says_so() -> None:
    written, hits, _ = await through([Trouble(Kind.DROP, times=1, seconds=0.05)])
    assert numbers(written) == [410]
    assert hits == {Kind.DROP: 1}


async def test_late_events_come_and_stalled_ones_do_not() -> None:
    written, hits, _ = await through([Trouble(Kind.LATE, times=2, seconds=0.01)])
    assert (numbers(written), hits) == ([0, 1, 2, 3, 4, 5], {Kind.LATE: 2})
    written, hits, _ = await through([Trouble(Kind.STALL)])
    assert (written, hits) == ([], {Kind.STALL: 1})


async def test_a_cut_leaves_half_a_line_and_an_expired_stream_says_410() -> None:
    written, _, cut = await through([Trouble(Kind.CUT)])
    assert cut and not written[-1].endswith(b"\n")
    written, _, cut = await through([Trouble(Kind.EXPIRE)])
    assert (numbers(written), cut) == ([410], False)


# The tally.


def test_the_tally_misses_what_did_not_run_and_what_did_not_strike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTS_FLOOR", "2")
    tally = Tally()
    everything = {str(kind): 1 for kind in Kind}
    tally.runs = [{"scenario": scenario.name, "struck": everything, "ok": True} for scenario in SCENARIOS]
    assert tally.missing() == []
    tally.runs[0]["struck"] = {}
    assert tally.missing() == []
    for run in tally.runs:
        run["struck"] = {kind: 1 for kind in everything if kind != "stale"}
    assert tally.missing() == ["fault stale never struck"]
    tally.runs = tally.runs[:1]
    assert "1 runs under faults, at least 2 expected" in tally.missing()
    assert f"scenario {SCENARIOS[1].name} never ran" in tally.missing()
