"""Whatever arrives, the app answers it or hangs up: with no error of its own, and with no verdict that is none."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders.examples import at_least, times
from tests.builders.made_objects import Pick, choices
from tests.builders.mutations import mutated, seeds
from tests.builders.reviews import policy, review_document
from tests.builders.spoiled import spoil_by
from tests.builders.wire import Wire, posted, taken_apart

# More than 20,000 together.
FLOORS = {"review": 6500, "body": 7500, "http": 6500}
GOOD = posted(json.dumps(review_document(content=policy())).encode())
STATUSES = {200, 400, 404, 405, 411, 413, 415, 417, 501, 505}
PIECES = [
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\x00", b"\xff", b" ", b":", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"null"),
    *(b"1e999", b"NaN", b"-0", b"1" * 400, b"\\ud800", b'"uid":7,', b'"request":', b"\xf0\x9f\x92\xa9", b"{" * 2000),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 1\r\n", b"Expect: 100-continue\r\n", b"HTTP/9.9", b"GET "),
    *(b"Content-Encoding: gzip\r\n", b"Upgrade: websocket\r\n", b"0\r\n\r\n", b"ffffffffffffffffff\r\n", b"?timeout=x"),
]


class Complaints(logging.Handler):
    """What was logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "aiohttp.server" and " 400, message" in self.format(record):
            return  # its way to say that this was no HTTP
        self.found.append(self.format(record))


@contextmanager
def wire() -> Iterator[tuple[Wire, asyncio.AbstractEventLoop, Complaints]]:
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: complaints.found.append(str(context)))

    async def made() -> Wire:
        return Wire()

    found = loop.run_until_complete(made())
    try:
        yield found, loop, complaints
    finally:
        loop.close()
        logging.getLogger().removeHandler(complaints)


def reviewed_bytes(pick: Pick, noise: bytes) -> bytes:
    """A review about a real object, with accidents in the object, in the review, and at times in its bytes."""
    seed = pick(seeds())
    subject = mutated(pick, seed)
    document = review_document(
        kind=pick((seed["kind"], "NPUNodePolicy", "Pod")),
        operation=pick(("CREATE", "UPDATE", "DELETE", "CONNECT")),
        content=subject,
        old=pick((None, copy.deepcopy(seed), copy.deepcopy(subject))),
        name=pick((None, "a", "")) if isinstance(subject.get("metadata"), dict) else "a",
        subresource=pick(("", "", "", "status")),
        groups=pick(((), ("npufleet:break-glass",))),
    )
    for _ in range(pick((0, 0, 1, 2))):
        spoil_by(pick, document)
    body = json.dumps(document, ensure_ascii=pick((True, False))).encode("utf-8", "surrogatepass")
    return spoilt_bytes(pick, body, noise, changes=pick((0, 0, 0, 1)))


def spoilt_bytes(pick: Pick, data: bytes, noise: bytes, *, changes: int) -> bytes:
    for _ in range(changes):
        start, length = pick(range(len(data) + 1)), pick((0, 1, 7, 40))
        data = data[:start] + pick((*PIECES, noise)) + data[start + length :]
    return data


def request_of(pick: Pick, noise: bytes, kind: str) -> bytes:
    match kind:
        case "review":
            return posted(reviewed_bytes(pick, noise))
        case "body":
            return posted(
                pick((noise, spoilt_bytes(pick, noise, b"", changes=3), spoilt_bytes(pick, b"{}", noise, changes=4)))
            )
        case _:
            spoilt = spoilt_bytes(pick, GOOD, noise, changes=pick((1, 2, 3)))
            return noise if pick((True, False)) else spoilt


def is_a_verdict(answer: Any, asked: bytes) -> bool:
    """Checks what the API server asks of an answer, and what we promise of it; whether it is one that allows."""
    assert set(answer) == {"apiVersion", "kind", "response"}
    assert answer["kind"] == "AdmissionReview"
    assert answer["apiVersion"].startswith("admission.k8s.io/")
    response = answer["response"]
    assert response["uid"] == json.loads(asked.partition(b"\r\n\r\n")[2])["request"]["uid"]
    assert response["allowed"] in (True, False)
    assert set(response) <= {"uid", "allowed", "status", "warnings", "auditAnnotations"}
    assert all(isinstance(one, str) for pair in response.get("auditAnnotations", {}).items() for one in pair)
    warnings = response.get("warnings", [])
    assert len(warnings) <= 10
    assert all(0 < len(one) <= 120 and "\n" not in one for one in warnings)
    if not response["allowed"]:
        status = response["status"]
        assert (status["status"], status["code"] in (400, 422)) == ("Failure", True)
        lines = status["message"].splitlines()
        causes = status.get("details", {}).get("causes", [])
        assert 0 < len(lines) <= 52
        assert len(causes) <= 100
        assert len(lines) == (len(causes) + 1 if 1 < len(causes) <= 50 else len(lines))
    return bool(response["allowed"])


@pytest.mark.parametrize("kind", FLOORS)
def test_what_arrives(kind: str) -> None:
    answers: Counter[str] = Counter()
    with wire() as (app, loop, complaints):

        def sent(data: bytes, cut: int, *, is_whole: bool) -> bytes:
            parts = [data[:cut], data[cut:]] if 0 < cut < len(data) else [data]
            return loop.run_until_complete(app.send(parts, is_whole=is_whole))

        @settings(max_examples=times(FLOORS[kind]), deadline=None, suppress_health_check=list(HealthCheck))
        @given(choices(), st.binary(max_size=120), st.integers(0, 400))
        def holds(pick: Pick, noise: bytes, cut: int) -> None:
            examples.one()
            asked = request_of(pick, noise, kind)
            answer = sent(asked, cut, is_whole=kind != "http")
            assert complaints.found == []
            assert app.in_flight() == 0
            if kind == "http" and not answer:
                answers["none"] += 1
                return
            status, body = taken_apart(answer)
            assert status in STATUSES, answer
            assert body.strip()
            if kind != "http" and status == 200:
                answers[f"allowed {is_a_verdict(json.loads(body), asked)}"] += 1
            else:
                answers[str(status)] += 1

        with at_least(FLOORS[kind], f"the app answers arbitrary requests ({kind})") as examples:
            holds()
        assert taken_apart(sent(GOOD, 0, is_whole=True))[0] == 200
    print(f"answers: {dict(sorted(answers.items()))}")
    assert answers["400"] > FLOORS[kind] // 100
    if kind == "review":
        assert min(answers["allowed True"], answers["allowed False"]) > FLOORS[kind] // 100


@pytest.mark.parametrize(
    ("asked", "is_whole", "verdict"),
    [
        (GOOD[:-20], False, "gone"),
        (GOOD.replace(b"Content-Length", b"Content-Encoding: gzip\r\nContent-Length"), True, "malformed"),
    ],
)
def test_body_that_ends_half_way_or_is_not_what_it_says_is_no_failure(
    asked: bytes, is_whole: bool, verdict: str
) -> None:
    with wire() as (app, loop, complaints):
        loop.run_until_complete(app.send([asked], is_whole=is_whole))
        assert complaints.found == []
        counted = app.registry.get_sample_value(
            "npufleet_webhook_review_seconds_count", {"kind": "other", "verdict": verdict}
        )
        assert counted == 1
