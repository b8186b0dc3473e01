"""Whatever bytes arrive: a review is answered, or refused as none; nothing else comes out, and answers are bounded."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.builders.examples import at_least
from tests.builders.reviews import ALL_KNOWN, NOTHING_KNOWN, policy, quota, review_document
from tests.builders.samples import VALID
from webhooks.server.answer import LONGEST_WARNING, MOST_CAUSES, MOST_WARNINGS
from webhooks.server.request import Malformed, Request, read_request
from webhooks.server.review import review

BYTES, DOCUMENTS, MUTATIONS = 20_000, 2_000, 2_000
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.large_base_example]
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
_SEEDS = [review_document(content=policy()), review_document(kind="VNPUQuota", namespace="team", content=quota())] + [
    review_document(kind=one["kind"], content=one) for one in VALID
]


def answered(body: bytes) -> Request | None:
    """Judge these bytes as the server does; None when they were refused as no review."""
    try:
        request = read_request(body)
    except Malformed as error:
        assert str(error)
        return None
    # By turns with and without copies of the rest of the cluster.
    view = ALL_KNOWN() if len(body) % 2 else NOTHING_KNOWN()
    outcome = review(request, view, rules="test", clock=time.perf_counter)
    text = json.dumps(outcome.answer, allow_nan=False).encode()
    response = json.loads(text)["response"]
    assert response["uid"] == request.uid
    assert isinstance(response["allowed"], bool)
    assert outcome.verdict in {"allowed", "denied", "passed", "refused"}
    assert len(text) < 300_000
    warnings = response.get("warnings", [])
    assert len(warnings) <= MOST_WARNINGS
    assert all(len(one) <= LONGEST_WARNING and "\n" not in one for one in warnings)
    if not response["allowed"]:
        status = response["status"]
        assert status["code"] >= 400
        assert status["message"]
        assert len(status.get("details", {}).get("causes", [])) <= MOST_CAUSES
    return request


def test_no_bytes_break_the_reading() -> None:
    with at_least(BYTES, "bytes as a review") as examples:

        @settings(max_examples=BYTES, deadline=None, database=None, suppress_health_check=QUIET)
        @given(st.binary(max_size=200))
        @example(b"\xed\xa0\x80")
        @example(b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"\\ud800"}}')
        def check(body: bytes) -> None:
            examples.one()
            answered(body)

        check()


def test_no_json_breaks_the_reading() -> None:
    with at_least(DOCUMENTS, "JSON as a request") as examples:

        @settings(max_examples=DOCUMENTS, deadline=None, database=None, suppress_health_check=QUIET)
        @given(st.dictionaries(st.sampled_from(sorted(_SEEDS[0]["request"])), _VALUES, max_size=6))
        def check(request: dict[str, Any]) -> None:
            examples.one()
            answered(json.dumps(review_document() | {"request": {"uid": "u", **request}}).encode())

        check()


def test_no_change_of_a_real_review_breaks_the_judging() -> None:
    with at_least(MUTATIONS, "changed reviews") as examples:

        @settings(max_examples=MUTATIONS, deadline=None, database=None, suppress_health_check=QUIET)
        @given(st.sampled_from(_SEEDS), st.integers(0, 10**9), _VALUES, st.booleans(), st.booleans())
        def check(seed: dict[str, Any], where: int, value: Any, takes_away: bool, updates: bool) -> None:
            examples.one()
            document = copy.deepcopy(seed)
            request = document["request"]
            if updates:
                request |= {"operation": "UPDATE", "oldObject": copy.deepcopy(request["object"])}
            change(request, where, value, takes_away=takes_away)
            answered(json.dumps(document).encode())

        check()


def change(request: dict[str, Any], where: int, value: Any, *, takes_away: bool) -> None:
    """Replace, or take away, one of the values of the object."""
    places: list[tuple[Any, Any]] = [(request, "object")]
    for holder, key in places:
        inner = holder[key]
        places += (
            [(inner, each) for each in (inner if isinstance(inner, dict) else range(len(inner)))]
            if isinstance(inner, (dict, list))
            else []
        )
    holder, key = places[where % len(places)]
    if takes_away:
        del holder[key]
    else:
        holder[key] = value
