"""A change past Git is told while it stands, with who made it and why; nothing else is taken for one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.break_glass import edited_by_hand
from controllers.break_glass.managed_fields import leaves_by_manager, told
from crds.break_glass import REASON_ANNOTATION, UNTIL_ANNOTATION
from tests.builders.examples import at_least

FLOOR = 2000
UNTIL = "2026-12-01T10:00:00Z"
Object = dict[str, Any]
SAID: Object = {f"f:{REASON_ANNOTATION}": {}, f"f:{UNTIL_ANNOTATION}": {}}


def manager(name: str, spec: Object | None = None, *, said: bool = False, how: str = "Update") -> Object:
    fields: Object = {}
    if said:
        fields["f:metadata"] = {"f:annotations": {".": {}, **SAID}}
    if spec is not None:
        fields["f:spec"] = spec
    return {"manager": name, "operation": how, "apiVersion": "npufleet.io/v1alpha1", "fieldsV1": fields}


def policy(*managers: dict[str, Any], reason: str = "node 7 burns", **annotations: str) -> dict[str, Any]:
    said = {REASON_ANNOTATION: reason, UNTIL_ANNOTATION: UNTIL, **annotations}
    return {"metadata": {"name": "p", "annotations": said, "managedFields": list(managers)}, "spec": {}}


GIT = manager("argocd-controller", {"f:devices": {}, "f:nodeSelector": {}}, how="Apply")


def fields(obj: dict[str, Any]) -> tuple[str, ...]:
    found = edited_by_hand(obj)
    return found.fields if found is not None else ()


def test_a_field_that_git_does_not_set_is_told_with_reason_and_time() -> None:
    found = edited_by_hand(policy(GIT, manager("kubectl-edit", {"f:priority": {}}, said=True)))
    assert found is not None
    assert (found.managers, found.fields, found.reason, found.until) == (
        ("kubectl-edit",),
        ("spec.priority",),
        "node 7 burns",
        UNTIL,
    )
    assert found.message == (
        "changed by hand with kubectl-edit, until 2026-12-01T10:00:00Z: spec.priority; because: node 7 burns. "
        "Goes when Git is applied with its own values for these fields"
    )


def test_a_field_taken_from_git_is_told_until_git_takes_it_back() -> None:
    taken = manager("argocd-controller", {"f:nodeSelector": {}}, how="Apply")
    assert fields(policy(taken, manager("kubectl-edit", {"f:devices": {}}, said=True))) == ("spec.devices",)
    assert not fields(policy(GIT, manager("kubectl-edit", said=True)))


def test_git_that_says_the_same_agrees() -> None:
    assert not fields(policy(GIT, manager("kubectl-edit", {"f:devices": {}}, said=True)))


def test_what_is_left_over_when_git_agrees_is_no_change_by_hand() -> None:
    git = manager("argocd-controller", {"f:rollout": {"f:maxUnavailable": {}}}, how="Apply")
    container: Object = {"f:rollout": {".": {}, "f:maxUnavailable": {}}}
    assert not fields(policy(git, manager("kubectl-edit", container, said=True))), "it made the place, Git fills it"
    assert not fields(policy(git, manager("kubectl-edit", {"f:rollout": {".": {}}}, said=True)))
    assert not fields(policy(git, manager("kubectl-edit", {"f:rollout": {}}, said=True))), "Git filled what was empty"


def test_a_manager_that_gave_no_reason_is_not_by_hand() -> None:
    assert not fields(policy(GIT, manager("kubectl-edit", said=True), manager("flux", {"f:priority": {}})))


def test_a_manager_is_one_however_it_writes() -> None:
    edit = policy(GIT, manager("me", said=True), manager("me", {"f:priority": {}}, how="Apply"))
    assert fields(edit) == ("spec.priority",)


def test_without_the_annotation_there_is_nothing_to_tell() -> None:
    obj = policy(GIT, manager("kubectl-edit", {"f:priority": {}}, said=True))
    del obj["metadata"]["annotations"][REASON_ANNOTATION]
    assert edited_by_hand(obj) is None


def test_several_hands_are_told_together_and_in_order() -> None:
    b, a = (manager(name, {f"f:{name}": {}, "f:same": {}}, said=True) for name in ("b", "a"))
    for pair in ((a, b), (b, a)):
        found = edited_by_hand(policy(GIT, *pair))
        assert found is not None
        assert (found.managers, found.fields) == (("a", "b"), ("spec.a", "spec.b"))


def test_text_for_people_is_one_line_and_bounded() -> None:
    many: Object = {f"f:field{number:02}": {} for number in range(40)}
    found = edited_by_hand(policy(manager("m", many, said=True), reason="one\ntwo  " + "x" * 5000))
    assert found is not None
    assert len(found.message) < 600
    assert "\n" not in found.message
    assert "spec.field03 and 36 more" in found.message
    assert "one two xxx" in found.message


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("f:spec", "f:devices", 'k:{"name":"a"}', "f:mode"), "spec.devices[name=a].mode"),
        (("f:spec", "f:list", 'v:"x"'), 'spec.list["x"]'),
        (("f:spec", "f:list", "i:0"), "spec.list[0]"),
        (("f:spec", "f:list", "k:broken"), "spec.list[broken]"),
        (("f:metadata", "f:annotations", "f:npufleet.io/x"), "metadata.annotations[npufleet.io/x]"),
    ],
)
def test_a_field_is_told_as_people_write_it(path: tuple[str, ...], text: str) -> None:
    assert told(path) == text


_NAMES = st.sampled_from(["git", "edit", "patch", "other"])
_SPEC_FIELDS = st.sets(st.sampled_from(["f:a", "f:b", "f:c"]))


def test_it_is_what_hands_alone_have_set_for_any_set_of_managers() -> None:
    @settings(max_examples=FLOOR, deadline=None)
    @given(st.dictionaries(_NAMES, st.tuples(st.booleans(), _SPEC_FIELDS), max_size=4), st.randoms())
    def sound(managers: dict[str, tuple[bool, set[str]]], order: Any) -> None:
        examples.one()
        entries = [
            manager(name, {key: {} for key in owned} or None, said=said) for name, (said, owned) in managers.items()
        ]
        order.shuffle(entries)
        expected = set()
        for name, (said, owned) in managers.items():
            others = {key for other, (_, keys) in managers.items() if other != name for key in keys}
            expected |= {key for key in owned - others if said}
        assert fields(policy(*entries)) == tuple(sorted(f"spec.{key[2:]}" for key in expected))

    with at_least(FLOOR, "managers of break-glass") as examples:
        sound()


_WAY = ("f:metadata", "f:annotations", f"f:{REASON_ANNOTATION}")
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["f:spec", ".", "Update"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["manager", "fieldsV1", "f:spec", *_WAY, "."]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def test_nothing_that_stands_in_managed_fields_makes_it_fail() -> None:
    @settings(max_examples=FLOOR, deadline=None)
    @given(_JSON, _JSON)
    def sound(managed: Any, said: Any) -> None:
        examples.one()
        found = edited_by_hand({"metadata": {"annotations": {REASON_ANNOTATION: said}, "managedFields": managed}})
        assert found is None or (found.fields and found.managers)

    with at_least(FLOOR, "unexpected managed fields") as examples:
        sound()


def test_a_tree_without_end_is_cut() -> None:
    tree: dict[str, Any] = {}
    for _ in range(100_000):
        tree = {"f:x": tree}
    assert leaves_by_manager([{"manager": "m", "fieldsV1": tree}]) == {"m": frozenset()}
