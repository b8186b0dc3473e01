"""The server and the linter say the same of the same object beside the same others: rule for rule, field for field."""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from cli.lint.linter import lint
from cli.lint.sources import Source
from crds.models.kinds import BY_NAME
from crds.models.node_policy import NPUNodePolicy
from crds.models.profile_map import VGPUProfileMap
from crds.models.vnpu_quota import VNPUQuota
from crds.yaml_documents import read_documents
from runtime.store import Key
from tests.builders.examples import at_least, times
from tests.builders.linting import NOW, options
from tests.builders.made_objects import Pick, choices
from tests.builders.mutations import mutated, seeds
from tests.builders.reviews import catalogue, review_document, reviewed
from tests.builders.samples import VALID
from webhooks.rules import RULES, Layer
from webhooks.rules.subject import read
from webhooks.server.cluster_view import ClusterView, KnownQuota

Object = dict[str, Any]
FLOORS = {"NPUNodePolicy": 11000, "VGPUProfileMap": 4500, "VNPUQuota": 4700}
SEEDS = {kind: [seed for seed in seeds() if seed["kind"] == kind] for kind in FLOORS}
AROUND = [
    [],
    [found for found in VALID if found["kind"] in FLOORS],
    *(
        [document.content for document in read_documents(example.others, "others")]
        for rule in RULES.values()
        for example in (*rule.bad, *rule.good)
        if example.others
    ),
]


def identity(obj: Object) -> tuple[str, str, str]:
    metadata = obj.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return obj["kind"], str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def around(pick: Pick, subject: Object) -> list[Object]:
    """Sound objects of our kinds, none of them the subject itself."""
    found = [one for one in pick(AROUND) if one["kind"] in FLOORS and identity(one) != identity(subject)]
    return [one for one in found if read(BY_NAME[one["kind"]], one) is not None]


def by_server(subject: Object, old: Object | None, others: list[Object]) -> tuple[set[str], set[str]]:
    """Ids of what refuses it, and of all that is said; the review goes over the wire."""
    models = {identity(one): read(BY_NAME[one["kind"]], one) for one in [*others, *([old] if old is not None else [])]}
    view = ClusterView(
        catalogue=catalogue(),
        now=NOW,
        known_policies={k[2]: model for k, model in models.items() if isinstance(model, NPUNodePolicy)},
        known_maps={k[2]: model for k, model in models.items() if isinstance(model, VGPUProfileMap)},
        known_quotas={
            Key(k[1], k[2]): KnownQuota(model, None) for k, model in models.items() if isinstance(model, VNPUQuota)
        },
    )
    _, namespace, name = identity(subject)
    document = review_document(
        kind=subject["kind"],
        operation="CREATE" if old is None else "UPDATE",
        content=subject,
        old=old,
        namespace=namespace,
        name=name,
    )
    outcome = reviewed(document, view)
    said = outcome.answer["response"].get("auditAnnotations", {}).get("rules", "")
    return set(outcome.broken), set(said.split(",")) - {""}


def by_linter(subject: Object, old: Object | None, others: list[Object]) -> tuple[set[str], set[str]]:
    sources = [Source("subject.yaml", json.dumps(subject))]
    if others:
        sources.append(Source("others.yaml", json.dumps({"apiVersion": "v1", "kind": "List", "items": others})))
    # What stands around the object stood there before, as the server takes it: it has no view of an earlier moment.
    base = [Source("subject.yaml", json.dumps(old)), *sources[1:]] if old is not None else []
    found = [one for one in lint(sources, options(), base=base).findings if one.spot.file == "subject.yaml"]
    spoken = [one for one in found if one.layer is Layer.WEBHOOK]
    # Where the linter sees the whole set, a rule of its own may say more than the server can.
    superseded = {RULES[one.rule].supersedes for one in found if one.layer is Layer.LINT and one.rule in RULES} - {""}
    return {one.rule for one in spoken if one.is_error}, {one.rule for one in spoken} | superseded


def is_unchanged(subject: Object, old: Object | None) -> bool:
    """The server does not look at what changes nothing; the linter goes on telling what was wrong before."""
    return old is not None and subject.get("spec") == old.get("spec")


@pytest.mark.parametrize("kind", FLOORS)
def test_rules_that_speak(kind: str) -> None:
    heard: Counter[str] = Counter()

    @settings(max_examples=times(FLOORS[kind]), deadline=None, suppress_health_check=list(HealthCheck))
    @given(choices())
    def agree(pick: Pick) -> None:
        examples.one()
        seed = pick(SEEDS[kind])
        subject = mutated(pick, seed)
        if subject.get("kind") != kind or subject.get("apiVersion") != seed["apiVersion"]:
            subject |= {"kind": kind, "apiVersion": seed["apiVersion"]}
        old = pick((None, None, seed, mutated(pick, seed)))
        if old is not None:
            # An update is one of an object with this name, and of one that an API server has taken.
            old = copy.deepcopy(old) | {
                "kind": kind,
                "apiVersion": seed["apiVersion"],
                "metadata": subject.get("metadata"),
            }
            if read(BY_NAME[kind], old) is None or not identity(old)[2]:
                old = None
        others = around(pick, subject)
        server_errors, server_all = by_server(subject, old, others)
        linter_errors, linter_all = by_linter(subject, old, others)
        case = f"{json.dumps(subject)}\nold: {json.dumps(old)}\nothers: {json.dumps(others)}"
        assert server_errors == linter_errors, case
        if not is_unchanged(subject, old):
            assert server_all == linter_all, case
        heard.update(server_all)

    with at_least(FLOORS[kind], f"server and linter name the same rules for a {kind}") as examples:
        agree()
    print(f"rules that spoke: {dict(sorted(heard.items()))}")
    assert len(heard) >= {"NPUNodePolicy": 15, "VGPUProfileMap": 4, "VNPUQuota": 4}[kind]
