"""Each oracle must be able to fail: a good run passes, and the same run with one thing wrong does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.cluster.faults import ending
from tests.cluster.faults.judge import CONTROLLER, Allowed, Record, judge, refusals_of, repeats_of, writes_of

Object = dict[str, Any]
NEWS = itertools.count()
CARD = ("flt-00", "0000:20:00.0")


def entry(
    resource: str = "npunodestates",
    verb: str = "patch",
    *,
    subresource: str = "",
    code: int = 200,
    version: int = 10,
    told: str = "",
    uid: str = "u",
) -> Object:
    about = {"resource": resource, "name": "x", **({"subresource": subresource} if subresource else {})}
    return {
        "user": {"username": CONTROLLER},
        "verb": verb,
        "requestURI": "/x",
        "objectRef": about,
        "responseStatus": {"code": code},
        "requestObject": {"status": {"told": told or f"news {next(NEWS)}", "lastTransitionTime": str(next(NEWS))}},
        "responseObject": {"metadata": {"resourceVersion": str(version), "uid": uid}},
    }


def run(**more: Any) -> Record:
    audit = [*[entry() for _ in range(20)], *[entry(subresource="status") for _ in range(40)]]
    return replace(Record(moved={CARD}, audit=audit, hits=1, settled_after=5.0), **more)


def test_write_of_the_version_from_which_on_a_run_is_watched_was_made_before_it() -> None:
    """A list's resourceVersion is that of the last write which it contains."""
    audit = [entry(version=9), entry(version=10), entry(version=11)]
    assert writes_of(audit, since=10) == {"patch npunodestates": 1}


def test_a_good_run_is_good() -> None:
    assert judge(run(), run(hits=0), Allowed()) == []


@pytest.mark.parametrize(
    ("faulty", "words"),
    [
        (lambda: run(differs=["/states/flt-00/devices: wanted 1, found 2"]), "the end was not reached"),
        (lambda: run(settled_after=61.0), "settled 61 s"),
        (lambda: run(settled_after=121.0, stalled=True), "settled 121 s"),
        (lambda: run(unnoticed=["nodes silent"]), "not noticed within 90 s"),
        (lambda: run(moved={CARD, ("flt-20", "0000:20:00.0")}), "touched without need"),
        (lambda: run(audit=[*run().audit, *[entry() for _ in range(3)]]), "23 writes of orders, 22 allowed"),
        (lambda: run(audit=[*run().audit, *[entry(subresource="status") for _ in range(17)]]), "writes of statuses"),
        (
            lambda: run(audit=[*run().audit, *[entry(subresource="status", told="same") for _ in range(4)]]),
            "3 statuses told again, 2 allowed (0 without): npunodestates x 3 times",
        ),
        (lambda: run(audit=[*run().audit, *[entry(code=500) for _ in range(41)]]), "41 writes that the server refused"),
        (lambda: run(audit=[]), "the audit log is empty"),
        (lambda: run(broken=["given back"]), "given back"),
    ],
)
def test_one_thing_wrong_is_told(faulty: Callable[[], Record], words: str) -> None:
    wrong = judge(faulty(), run(hits=0), Allowed())
    assert len(wrong) == 1
    assert words in wrong[0]


def test_bounds_grow_with_faults_and_with_what_a_scenario_allows() -> None:
    more = [*run().audit, *[entry() for _ in range(6)]]
    assert judge(run(audit=more, hits=2), run(), Allowed())
    assert judge(run(audit=more, hits=3), run(), Allowed()) == []
    assert judge(run(audit=more, hits=2), run(), Allowed(writes=2)) == []
    assert judge(run(settled_after=100.0, stalled=True), run(), Allowed()) == []
    other = ("flt-01", "0000:20:00.0")
    assert judge(run(moved={CARD, other}), run(), Allowed(touched=frozenset({other}))) == []


def test_only_writes_of_the_controller_that_took_effect_are_counted() -> None:
    audit = [
        entry(),
        entry(code=409),
        entry("leases", "update"),
        entry("events", "create"),
        entry("npunodepolicies", subresource="status", version=3),
        {**entry(), "user": {"username": "somebody"}},
        {**entry(), "verb": "get"},
        {**entry(verb="delete"), "responseObject": {"kind": "Status", "metadata": {}}},
    ]
    assert dict(writes_of(audit, since=5)) == {"patch npunodestates": 1, "delete npunodestates": 1}
    assert writes_of(audit).total() == 3
    assert refusals_of(audit) == 1


def test_status_of_an_object_made_anew_or_of_a_refused_write_repeats_nothing() -> None:
    same: dict[str, Any] = {"subresource": "status", "told": "same"}
    audit = [entry(**same), entry(**same, uid="of the next one"), entry(**same, code=409), entry(told="same")]
    assert repeats_of(audit).total() == 0
    assert repeats_of([*audit, entry(**same)]) == {"npunodestates x": 1}


def test_more_statuses_by_the_timing_of_each_node_are_borne_and_no_more() -> None:
    reference = run(hits=0, ending={"states": {f"flt-{number:02}": {} for number in range(20)}})
    again = [*reference.audit, *[entry(subresource="status", told="same") for _ in range(1 + 20 + 2)]]
    assert judge(run(audit=again), reference, Allowed()) == []
    (wrong,) = judge(run(audit=[*again, entry(subresource="status", told="same")]), reference, Allowed())
    assert "23 statuses told again, 22 allowed" in wrong
    most = [*reference.audit, *[entry(subresource="status") for _ in range(14 + 40 + 2)]]
    assert judge(run(audit=most), reference, Allowed()) == []
    assert judge(run(audit=[*most, entry(subresource="status")]), reference, Allowed())


def test_endings_differ_by_what_is_said_and_not_by_when_or_about_which_uid() -> None:
    def said(**more: Any) -> Object:
        condition = {"type": "Ready", "status": "True", "reason": "R", "lastTransitionTime": "t", **more}
        return {"status": {"observedGeneration": 3, "conditions": [condition, {"type": "Accepted", "status": "True"}]}}

    one, two = (f"{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}" for digit in "ab")
    first, second = said(message=f"UID {one}"), said(message=f"UID {two}", lastTransitionTime="later")
    second["status"]["conditions"].reverse()
    assert ending.plain(first) == ending.plain(second)
    (difference,) = ending.differences(ending.plain(said()), ending.plain(said(status="False")))
    assert difference.startswith("/status/conditions: wanted")


def test_an_ending_tells_whether_reports_are_of_the_present_orders_and_of_the_present_node() -> None:
    state: Object = {
        "metadata": {"generation": 2},
        "spec": {"nodeUID": "u", "revision": "r"},
        "status": {"rollout": {"observedGeneration": 1}},
    }
    node: Object = {"metadata": {"uid": "u"}, "spec": {}}
    assert not ending.state(state, node)["rollout is current"]
    assert ending.state(state, node)["current UID"]
    assert not ending.state(state, {"metadata": {"uid": "other"}, "spec": {}})["current UID"]
    marked = {"metadata": {"annotations": {"npufleet.io/cordoned-by": "p", "x": "y"}}, "spec": {"unschedulable": True}}
    assert ending.node(marked) == {"marks": {"npufleet.io/cordoned-by": "p"}, "unschedulable": True}
