"""Only what a change makes wrong refuses it: what was there before is told, and lets it pass."""

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crds.catalogue import load_catalogue
from crds.models.kinds import BY_NAME
from tests.builders.examples import at_least
from tests.builders.objects import device_rule, node_policy, profile_map
from tests.builders.samples import INVALID, VALID
from tests.builders.spoiled import spoil
from webhooks.rules import RULES, KnownView, Operation, Severity, Subject, Violation
from webhooks.rules.examples import NOW, staged, view_of
from webhooks.rules.judge import ALL_LAYERS, judge_change

CATALOGUE = load_catalogue()
VIEW = view_of(VALID, CATALOGUE)
FLOOR = 2000
WRONG = [
    staged(rule, example, CATALOGUE)[0].content
    for rule in RULES.values()
    if rule.ratcheted
    for example in rule.bad
    if not example.old
]
BEFORE = [
    found for found in (*VALID, *(sample.object for sample in INVALID), *WRONG) if found["kind"] != "NPUNodeState"
]


def change(old: dict[str, Any], new: dict[str, Any], **given: Any) -> list[Violation]:
    return judge_change(Subject.of(BY_NAME[new["kind"]], new, old, **given), VIEW, layers=ALL_LAYERS)


def errors(found: list[Violation]) -> list[str]:
    return [violation.line for violation in found if violation.severity is Severity.ERROR]


@st.composite
def spoiled(draw: st.DrawFn) -> dict[str, Any]:
    obj: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(BEFORE)))
    for _ in range(draw(st.integers(0, 2))):
        spoil(draw, obj["spec"] if isinstance(obj.get("spec"), dict) and obj["spec"] else obj)
    return obj


def test_an_object_that_does_not_change_has_no_errors_and_judging_never_fails() -> None:
    wrong = 0

    @settings(max_examples=FLOOR + 100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(spoiled(), st.booleans())
    def hold(obj: dict[str, Any], touch: bool) -> None:
        nonlocal wrong
        examples.one()
        new = copy.deepcopy(obj)
        if touch and isinstance(new.get("metadata"), dict):
            new["metadata"] = new["metadata"] | {"finalizers": ["example.com/x"], "resourceVersion": "2"}
        found = change(obj, new)
        wrong += any(violation.fix.endswith("it was there before") for violation in found)
        assert errors(found) == []

    with at_least(FLOOR, "unchanged objects have no errors") as examples:
        hold()
    print(f"of these {wrong} would have errors as new objects")
    assert wrong > FLOOR // 3


def test_what_was_wrong_before_becomes_a_warning_that_says_so() -> None:
    old = node_policy(rules=[device_rule(products=["RBLN-CA2"])])
    new = copy.deepcopy(old)
    new["spec"]["priority"] = 200
    (told,) = change(old, new)
    assert told.severity is Severity.WARNING
    assert told.text.startswith('unknown product "RBLN-CA2"; did you mean RBLN-CA25')
    assert told.text.endswith("; it was there before")


def test_what_moved_in_its_list_was_there_before() -> None:
    old = node_policy(rules=[device_rule("a", products=["RBLN-CA2"]), device_rule("b")])
    new = copy.deepcopy(old)
    new["spec"]["devices"].reverse()
    assert errors(change(old, new)) == []


def test_another_value_at_the_same_place_is_an_error() -> None:
    old = node_policy(rules=[device_rule(products=["RBLN-CA2"])])
    new = node_policy(rules=[device_rule(products=["RBLN-CA3"])])
    assert errors(change(old, new))


def test_a_rule_that_becomes_unreachable_is_an_error_though_it_did_not_change_itself() -> None:
    rest = device_rule("rest", match={"vendors": ["1eff"]}, mode="Container")
    old = node_policy(rules=[device_rule("some", limit=1), device_rule("more"), rest])
    new = node_policy(rules=[device_rule("some"), device_rule("more"), rest])
    assert errors(change(old, old)) == []
    assert [line.partition(":")[0] for line in errors(change(old, new))] == ["spec.devices[1].match"]


def test_an_object_that_is_being_deleted_is_judged_for_a_new_spec_alone() -> None:
    old = node_policy(rules=[device_rule(products=["RBLN-CA2"])])
    new = node_policy(rules=[device_rule(products=["RBLN-CA3"])])
    for each in (old, new):
        each["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    assert change(old, {**old, "metadata": {**old["metadata"], "finalizers": []}}) == []
    assert len(errors(change(old, new))) == 1


def test_deletion_that_waits_for_a_finalizer_is_no_way_round_the_clock() -> None:
    marks = {"npufleet.io/break-glass-reason": "fire", "npufleet.io/break-glass-until": "2026-11-01T00:00:00Z"}
    old, new = node_policy(meta={"annotations": marks}), node_policy(meta={"annotations": marks}, priority=200)
    for each in (old, new):
        each["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    (fault,) = errors(change(old, new, groups=frozenset({"npufleet:break-glass"})))
    assert "is past; it is 2026-11-30T12:00:00Z [NPF-ALL-902]" in fault


@pytest.mark.parametrize("groups", [None, (), ("npufleet:writers",)])
def test_annotations_of_a_glass_that_was_broken_long_ago_keep_no_writer_from_writing(
    groups: tuple[str, ...] | None,
) -> None:
    marks = {"npufleet.io/break-glass-reason": "fire", "npufleet.io/break-glass-until": "2026-11-01T00:00:00Z"}
    old = node_policy(meta={"annotations": marks})
    new = node_policy(meta={"annotations": marks}, priority=200)
    assert errors(change(old, new, groups=None if groups is None else frozenset(groups))) == []
    by_hand = errors(change(old, new, groups=frozenset({"npufleet:break-glass"})))
    assert len(by_hand) == 1
    assert "is past; it is 2026-11-30T12:00:00Z [NPF-ALL-902]" in by_hand[0]


def test_a_deletion_past_git_is_judged_by_the_annotations_of_the_object_that_goes() -> None:
    view = KnownView(CATALOGUE, NOW)

    def deleted(until: str, groups: frozenset[str] | None) -> list[str]:
        marks = {"npufleet.io/break-glass-reason": "fire", "npufleet.io/break-glass-until": until}
        going = node_policy(rules=[device_rule(products=["RBLN-CA2"])], meta={"annotations": marks})
        going["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
        kind = BY_NAME["NPUNodePolicy"]
        subject = Subject.of(kind, going, operation=Operation.DELETE, groups=groups)
        return [violation.rule for violation in judge_change(subject, view)]

    by_hand = frozenset({"npufleet:break-glass"})
    assert deleted("2026-11-30T11:00:00Z", by_hand) == ["NPF-ALL-902"]
    assert deleted("2026-11-30T13:00:00Z", by_hand) == []
    assert deleted("2026-11-30T11:00:00Z", frozenset({"system:masters"})) == []
    assert deleted("2026-11-30T11:00:00Z", None) == []


def test_narrowing_is_judged_by_what_vms_hold() -> None:
    policy = node_policy(
        "user", rules=[device_rule(products=["L40S"], mode="VGPU", vgpu={"profile_map_ref": {"name": "map"}})]
    )
    policy["spec"]["devices"][0]["vgpu"] = {"profileMapRef": {"name": "map"}}
    view = view_of([policy], CATALOGUE)

    def narrowed(now: dict[str, int], in_use: int | None) -> list[str]:
        counts = {"desired": 16, "ready": 16, "failed": 0, "inUse": in_use}
        status = None if in_use is None else {"profiles": [{"profile": "L40S-12Q"} | counts], "totals": counts}
        old = profile_map("map", layout={"L40S-12Q": 4}, status=status)
        subject = Subject.of(BY_NAME["VGPUProfileMap"], profile_map("map", layout=now, status=status), old)
        return [violation.rule for violation in judge_change(subject, view)]

    assert narrowed({"L40S-12Q": 2}, None) == ["NPF-PM-121"]
    assert narrowed({"L40S-12Q": 2}, 3) == ["NPF-PM-121"]
    assert narrowed({"L40S-12Q": 2}, 2) == []
    assert narrowed({"L40S-24Q": 2}, 1) == ["NPF-PM-121"]
    assert narrowed({"L40S-24Q": 2}, 0) == []
    assert narrowed({"L40S-12Q": 4}, None) == []


def layout_of(*items: tuple[str, int], **card: Any) -> dict[str, Any]:
    """A map with one entry for L40S."""
    layout = [{"profile": profile, "count": count} for profile, count in items]
    return profile_map(gpus=[{"match": {"products": ["L40S"]}, "layout": layout, "mixedSizes": "Allow"} | card])


def quota_of(limits: dict[str, Any], per_pod: dict[str, Any] | None = None) -> dict[str, Any]:
    found = {"limits": limits} | ({"perPod": per_pod} if per_pod else {})
    metadata = {"name": "quota", "namespace": "team-a"}
    return {"apiVersion": "npufleet.io/v1alpha1", "kind": "VNPUQuota", "metadata": metadata, "spec": found}


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.ratcheted], ids=lambda rule: rule.id)
def test_a_second_copy_of_a_fault_is_a_new_fault(rule: Any) -> None:
    for example in rule.bad:
        content = staged(rule, example, CATALOGUE)[0].content
        listed = content["spec"].get("devices") or content["spec"].get("gpus") if content.get("spec") else None
        if example.old or not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], dict):
            continue
        new = copy.deepcopy(content)
        items = new["spec"]["devices" if "devices" in new["spec"] else "gpus"]
        twin = copy.deepcopy(items[0])
        if "name" in twin:
            twin["name"] = f"{twin['name']}-2"
        items.append(twin)
        alone = [found for found in change(content, content) if found.rule == rule.id]
        both = [found for found in change(content, new) if found.rule == rule.id]
        if any(found.fix.endswith("it was there before") for found in alone) and len(both) == 2 * len(alone):
            assert len([found for found in both if found.severity is Severity.ERROR]) == len(alone)


def test_a_new_rule_with_the_fault_of_an_old_one_is_refused() -> None:
    soft = {"mode": "SoftVNPU"}
    block = {"softVNPU": {"library": {"name": "vcann-rt", "version": "1.2.0"}}}
    atom = device_rule("a", match={"vendors": ["1eff"], "devices": ["1250"]}, **soft) | block
    old = node_policy(rules=[atom])
    other = device_rule("b", match={"vendors": ["1eff"], "devices": ["1220"]}, **soft) | block
    assert errors(change(old, node_policy(rules=[other, atom])))
    assert errors(change(old, node_policy(rules=[other])))
    assert errors(change(old, node_policy(rules=[atom], priority=7))) == []


def test_a_bad_layout_may_change_in_everything_else_and_become_better() -> None:
    old = layout_of(("L40S-24Q", 2), ("L40S-12Q", 2))
    named = copy.deepcopy(old)
    named["spec"]["gpus"][0]["layout"][0]["resourceName"] = "nvidia.com/L40S-24Q"
    assert errors(change(old, old)) == []
    assert errors(change(old, named)) == []
    assert errors(change(old, layout_of(("L40S-12Q", 2), ("L40S-24Q", 2)))) == []
    assert errors(change(old, layout_of(("L40S-24Q", 2), ("L40S-12Q", 1)))) == []
    assert errors(change(old, layout_of(("L40S-24Q", 2), ("L40S-12Q", 3))))
    many = layout_of(("L40S-24Q", 6))
    assert errors(change(many, layout_of(("L40S-24Q", 4)))) == []
    assert errors(change(many, layout_of(("L40S-24Q", 7))))


@pytest.mark.parametrize(
    ("old", "worse", "better"),
    [
        (quota_of({"devices": 2, "cores": 50}), {"cores": 10}, {"cores": 60}),
        (quota_of({"cores": 40}, {"minCores": 50}), {"cores": 1}, {"cores": 45}),
        (quota_of({"devices": 9, "cores": 150}, {"minDevices": 4}), {"cores": 100}, {"cores": 350}),
    ],
)
def test_a_quota_that_contradicts_itself_may_not_do_so_more(
    old: dict[str, Any], worse: dict[str, Any], better: dict[str, Any]
) -> None:
    def with_limits(limits: dict[str, Any]) -> dict[str, Any]:
        new = copy.deepcopy(old)
        new["spec"]["limits"] |= limits
        return new

    assert errors(change(old, with_limits({}))) == []
    assert errors(change(old, with_limits(better))) == []
    assert errors(change(old, with_limits(worse)))
