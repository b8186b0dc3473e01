"""Reviews as API servers send them, and as they never should: each has an answer, and the answer names its question."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crds.break_glass import GROUP as BREAK_GLASS
from crds.break_glass import REASON_ANNOTATION, UNTIL_ANNOTATION
from tests.builders.reviews import (
    ALL_KNOWN,
    NOTHING_KNOWN,
    policy,
    quota,
    review_document,
    reviewed,
)
from webhooks.rules import UNKNOWN
from webhooks.server.request import Malformed, read_request

BAD = policy(products=["RBLN-CA2"])


def response(**given: Any) -> dict[str, Any]:
    return dict(reviewed(review_document(**given)).answer["response"])


def test_good_object_is_let_in_and_the_uid_is_echoed() -> None:
    answer = reviewed(review_document(uid="abc-1", content=policy())).answer
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    assert answer["kind"] == "AdmissionReview"
    assert answer["response"]["uid"] == "abc-1"
    assert answer["response"]["allowed"] is True
    assert "status" not in answer["response"]


def test_bad_object_is_refused_with_every_fault_as_cause_and_as_line() -> None:
    found = response(content=policy(products=["RBLN-CA2", "RBLN-CA222", "x"]))
    assert found["allowed"] is False
    status = found["status"]
    assert (status["code"], status["reason"], status["status"]) == (422, "Invalid", "Failure")
    assert status["message"].splitlines()[0] == "3 violations:"
    assert len(status["message"].splitlines()) == 4
    assert status["details"]["kind"] == "NPUNodePolicy"
    assert status["details"]["name"] == "a"
    causes = status["details"]["causes"]
    assert [cause["field"] for cause in causes] == [f"spec.devices[0].match.products[{n}]" for n in range(3)]
    assert all(cause["message"].endswith("[NPF-NP-101]") for cause in causes)
    assert 'unknown product "RBLN-CA2"' in causes[0]["message"]


def test_single_fault_is_a_single_line() -> None:
    message = response(content=BAD)["status"]["message"]
    assert "\n" not in message
    assert message.startswith("spec.devices[0].match.products[0]: ")


def test_no_answer_carries_a_patch() -> None:
    for content in (policy(), BAD):
        found = response(content=content)
        assert not {"patch", "patchType"} & set(found)


@pytest.mark.parametrize("dry_run", [True, False, None, "yes"])
def test_dry_run_is_answered_word_by_word_like_the_real_run(dry_run: Any) -> None:
    for content in (policy(), BAD):
        real = response(content=content)
        dry = response(content=content, dry_run=dry_run)
        for one in (real, dry):
            one["auditAnnotations"].pop("decision-time")
        assert dry == real


def test_audit_annotations_tell_the_rules_and_the_time() -> None:
    found = response(content=BAD)["auditAnnotations"]
    assert found["rules-version"] == "test"
    assert found["rules"] == "NPF-NP-101"
    assert found["decision-time"].endswith("ms")


def test_create_without_an_old_object_and_delete_without_a_new_one() -> None:
    assert response(content=policy(), old=None)["allowed"]
    assert response(operation="DELETE", content=None, old=BAD)["allowed"], "deletion never waits for a rule of specs"
    assert response(operation="DELETE", content=None, old=None)["allowed"]


def test_update_whose_spec_is_the_same_passes_whatever_it_is() -> None:
    changed = {**BAD, "metadata": {**BAD["metadata"], "labels": {"a": "b"}, "finalizers": []}}
    found = response(operation="UPDATE", content=changed, old=BAD)
    assert found["allowed"]
    assert "warnings" not in found


def test_object_that_is_being_deleted_loses_finalizers_unjudged_and_gets_no_bad_spec() -> None:
    going = {**BAD, "metadata": {**BAD["metadata"], "deletionTimestamp": "2026-11-30T12:00:00Z"}}
    assert response(operation="UPDATE", content=going, old=BAD)["allowed"]
    assert not response(operation="UPDATE", content=going, old=policy())["allowed"]


def test_update_is_refused_for_what_it_makes_wrong_alone() -> None:
    kept = policy(products=["RBLN-CA2"], priority=7)
    found = response(operation="UPDATE", content=kept, old=BAD)
    assert found["allowed"]
    assert len(found["warnings"]) == 1
    worse = response(operation="UPDATE", content=policy(products=["RBLN-CA2", "none-such"]), old=BAD)
    assert not worse["allowed"]
    causes = worse["status"]["details"]["causes"]
    assert ['"none-such"' in cause["message"] for cause in causes] == [True]


def test_update_without_an_old_object_is_judged_whole() -> None:
    assert not response(operation="UPDATE", content=BAD, old=None)["allowed"]


def test_generated_name_is_no_name_yet() -> None:
    content = policy()
    content["metadata"] = {"generateName": "gen-"}
    assert response(name="", content=content)["allowed"]
    bad = {**BAD, "metadata": {"generateName": "gen-"}}
    found = response(name="", content=bad)
    assert not found["allowed"]
    assert found["status"]["details"]["name"] == "gen-"


@pytest.mark.parametrize("subresource", ["status", "scale", "anything"])
def test_subresources_are_let_through_when_a_wildcard_sends_them(subresource: str) -> None:
    assert response(subresource=subresource, content=BAD)["allowed"]


@pytest.mark.parametrize("operation", ["CONNECT", "", "PATCH", "create"])
def test_operations_that_make_no_object_are_let_through(operation: str) -> None:
    assert response(operation=operation, content=BAD)["allowed"]


def test_break_glass_after_its_time_changes_no_metadata_and_no_orders_unless_git_asks() -> None:
    late = {REASON_ANNOTATION: "card on fire", UNTIL_ANNOTATION: "2026-11-30T11:00:00Z"}
    members = ("system:authenticated", BREAK_GLASS)

    def said(obj: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {**obj, "metadata": {**obj["metadata"], "annotations": late, **more}}

    old, new = said(policy()), said(policy(), labels={"a": "b"})
    assert response(operation="UPDATE", content=new, old=old)["allowed"], "nobody of the group"
    found = response(operation="UPDATE", content=new, old=old, groups=members)
    assert "[NPF-ALL-902]" in found["status"]["message"]
    assert response(operation="UPDATE", content=old, old=old, groups=members)["allowed"]
    assert response(operation="UPDATE", content=policy(), old=old, groups=members)["allowed"]
    state = {"apiVersion": "npufleet.io/v1alpha1", "kind": "NPUNodeState", "metadata": {"name": "a"}, "spec": {}}
    asked = {"kind": "NPUNodeState", "content": said(state), "old": said({**state, "spec": {"revision": "1"}})}
    assert response(operation="UPDATE", **asked)["allowed"]
    assert "[NPF-ALL-902]" in response(operation="UPDATE", groups=members, **asked)["status"]["message"]
    unknown, git = ALL_KNOWN(), ALL_KNOWN(writers=["someone"])
    document = review_document(operation="UPDATE", content=new, old=old, groups=members)
    assert [reviewed(document, view).verdict for view in (unknown, git)] == ["denied", "allowed"]


@pytest.mark.parametrize("kind", ["Pod", "NPUNodeState", ""])
def test_kinds_without_rules_are_let_through(kind: str) -> None:
    group = "npufleet.io" if kind.startswith("NPU") else ""
    assert response(group=group, kind=kind, content=BAD)["allowed"]


def test_object_of_a_version_that_is_not_known_is_refused_with_what_to_set() -> None:
    found = response(version="v2", content=policy())
    assert not found["allowed"]
    assert "matchPolicy" in found["status"]["message"]
    assert found["status"]["code"] == 400


def test_review_of_another_version_is_answered_in_its_own_version() -> None:
    answer = reviewed(review_document(api_version="admission.k8s.io/v1beta1", content=policy())).answer
    assert answer["apiVersion"] == "admission.k8s.io/v1beta1"
    assert answer["response"]["allowed"] is False
    assert "admissionReviewVersions has to be [v1]" in answer["response"]["status"]["message"]
    assert answer["response"]["uid"]


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("content", [None, [], "text", 7])
def test_missing_object_is_refused(operation: str, content: Any) -> None:
    found = response(operation=operation, content=content)
    assert not found["allowed"]
    assert found["status"]["code"] == 400


def test_whole_numbers_that_are_written_as_fractions_are_whole_numbers() -> None:
    text = json.dumps(review_document(content=policy(priority=100))).replace('"priority": 100', '"priority": 1.0e2')
    assert '"priority": 1.0e2' in text
    request = read_request(text.encode())
    assert request.content is not None
    assert request.content["spec"]["priority"] == 100
    assert isinstance(request.content["spec"]["priority"], int)


@pytest.mark.parametrize("value", [1, "25%", "1", None])
def test_integers_or_percentages_do_not_stop_a_review(value: Any) -> None:
    assert isinstance(response(content=policy(rollout={"maxUnavailable": value}))["allowed"], bool)


def test_what_the_copies_do_not_show_is_told_and_refuses_nothing() -> None:
    content = policy(mode="VGPU", vgpu={"profileMapRef": {"name": "none-such"}}, products=["L40S"])
    blind = reviewed(review_document(content=content), NOTHING_KNOWN()).answer["response"]
    assert blind["allowed"]
    assert blind["warnings"][0].startswith("not checked against ")
    assert "profile maps" in blind["warnings"][0]


def test_faults_that_need_no_copies_are_found_without_them() -> None:
    assert not reviewed(review_document(content=BAD), NOTHING_KNOWN()).answer["response"]["allowed"]


def test_warnings_are_few_and_short_and_keep_the_id_of_their_rule() -> None:
    rules = [{"name": f"r{n}", "match": {"products": ["RBLN-CA25"]}, "mode": "Container"} for n in range(32)]
    long = {**policy(), "spec": {"nodeSelector": {"matchLabels": {"a" * 60: "b" * 60}}, "devices": rules}}
    found = reviewed(review_document(content=long), ALL_KNOWN({"n": {"a" * 60: "c"}})).answer["response"]
    assert all(len(warning) <= 120 for warning in found.get("warnings", []))
    assert len(found.get("warnings", [])) <= 10
    told = [one for one in found["warnings"] if "NPF-" in one]
    assert told
    assert all(one.endswith("]") for one in told)


def test_hundreds_of_faults_are_bounded_and_counted() -> None:
    many = policy()
    many["spec"]["devices"] = [
        {"name": f"r{n}", "match": {"products": [f"none-{n}-{m}" for m in range(32)]}, "mode": "Container"}
        for n in range(32)
    ]
    status = response(content=many)["status"]
    lines = status["message"].splitlines()
    assert int(lines[0].split()[0]) >= 1024
    assert len(lines) == 52
    assert lines[-1].startswith("and ")
    assert len(status["details"]["causes"]) == 100
    assert len(json.dumps(status)) < 100_000


def test_quota_is_judged_beside_its_own_namespace() -> None:
    found = reviewed(review_document(kind="VNPUQuota", namespace="team", content=quota()), ALL_KNOWN())
    assert found.answer["response"]["allowed"]
    assert found.kind == "VNPUQuota"


def test_outcome_tells_what_is_counted() -> None:
    good, bad = reviewed(review_document(content=policy())), reviewed(review_document(content=BAD))
    assert (good.kind, good.verdict, good.broken) == ("NPUNodePolicy", "allowed", ())
    assert (bad.kind, bad.verdict, bad.broken) == ("NPUNodePolicy", "denied", ("NPF-NP-101",))
    other = reviewed(review_document(group="", kind="Pod", content={}))
    assert (other.kind, other.verdict) == ("other", "passed")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b"null", "no JSON object"),
        (b"[]", "no JSON object"),
        (b"{}", "expected AdmissionReview"),
        (b"\xff\xfe\x00", "no JSON"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', "no request"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}', "request.uid is missing"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":""}}', "request.uid"),
        (b'{"apiVersion":"v1","kind":"AdmissionReview","request":{"uid":"a"}}', "expected AdmissionReview"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":Infinity}', "Infinity"),
        (b'{"a":1e999}', "too large a number"),
        (b'{"a":' + b"1" * 5000 + b"}", "no JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    ],
)
def test_bytes_that_are_no_review_are_refused_with_the_reason(body: bytes, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        read_request(body)


def test_view_that_is_unknown_is_not_empty() -> None:
    view = NOTHING_KNOWN()
    assert view.policies() is UNKNOWN
    assert view.quotas("team") is UNKNOWN
    assert view.inventory("node") is UNKNOWN
    assert view.missed == ["node policies", "quotas", "inventories of nodes"]
