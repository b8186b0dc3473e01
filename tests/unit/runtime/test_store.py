"""The local copy of a kind: no ghosts, no lost objects, one notification per real change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from runtime.store import Change, Key, MalformedObject, Store


def item(name: str, version: int, uid: str = "", **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}, **fields}


def store_of(*items: dict[str, Any], version: int = 10) -> Store[Any]:
    store: Store[Any] = Store(lambda found: found.get("spec"))
    store.replace([store.convert(one) for one in items], version)
    return store


def listed(store: Store[Any], version: int, *items: dict[str, Any], restart: bool = False) -> bool:
    return store.replace([store.convert(one) for one in items], version, restart=restart)


def is_synced(store: Store[Any]) -> bool:
    return store.synced


def names(store: Store[Any]) -> list[str]:
    return list(map(str, store.keys()))


def test_case_1_an_object_deleted_during_a_gap_is_gone_after_the_next_list() -> None:
    store = store_of(item("a", 3), item("b", 4))
    listed(store, 20, item("a", 3))
    assert names(store) == ["a"]


def test_absence_means_nothing_before_the_first_list() -> None:
    store: Store[Any] = Store(lambda found: found)
    assert not is_synced(store)
    store.apply_event("ADDED", item("a", 3))
    assert not is_synced(store)
    listed(store, 5)
    assert is_synced(store) and names(store) == []


def test_a_list_keeps_what_is_newer_than_itself() -> None:
    store = store_of(item("a", 3))
    store.apply_event("ADDED", item("b", 15))
    store.apply_event("MODIFIED", item("a", 16, spec="new"))
    listed(store, 12, item("a", 3, spec="old"))
    assert names(store) == ["a", "b"]
    assert store.get("a") == "new"


def test_a_list_older_than_the_last_one_changes_nothing() -> None:
    store = store_of(item("a", 3), version=10)
    assert not listed(store, 8, item("a", 3), item("ghost", 2))
    assert names(store) == ["a"]


def test_a_deletion_is_not_undone_by_a_late_event_or_an_older_list() -> None:
    store = store_of(item("a", 3))
    store.apply_event("DELETED", item("a", 15))
    store.apply_event("MODIFIED", item("a", 14))
    assert names(store) == []
    listed(store, 12, item("a", 12))
    assert names(store) == []
    listed(store, 16)
    store.apply_event("MODIFIED", item("a", 14))
    assert names(store) == []


def test_a_late_event_of_an_earlier_incarnation_changes_nothing() -> None:
    store = store_of(item("a", 3, uid="first"))
    store.apply_event("ADDED", item("a", 20, uid="third"))
    store.apply_event("DELETED", item("a", 25, uid="third"))
    store.apply_event("MODIFIED", item("a", 18, uid="second"))
    assert names(store) == []


def test_a_name_deleted_and_created_again_is_the_new_object() -> None:
    store = store_of(item("a", 3, uid="old", spec=1))
    store.apply_event("ADDED", item("a", 20, uid="new", spec=1))
    entry = store.entry("a")
    assert entry is not None and entry.uid == "new"
    store.apply_event("DELETED", item("a", 15, uid="old"))
    assert names(store) == ["a"]
    assert [entry.uid for entry in store.entries()] == ["new"]
    assert len(store) == 1


def test_a_list_with_a_name_created_again_is_one_change() -> None:
    store = store_of(item("a", 3, uid="old", spec=1))
    changes: list[Change[Any]] = []
    store.subscribe(changes.extend)
    listed(store, 20, item("a", 15, uid="new", spec=1))
    assert changes == [Change(Key("", "a"), 1, 1)]


def test_an_object_that_left_a_selector_may_come_back_with_its_uid() -> None:
    store = store_of(item("a", 3))
    store.apply_event("DELETED", item("a", 15))
    store.apply_event("ADDED", item("a", 17))
    assert names(store) == ["a"]
    store.apply_event("DELETED", item("a", 15))
    assert names(store) == ["a"]


def test_duplicates_and_reordered_events_leave_the_newest_state_and_notify_once() -> None:
    store = store_of(item("a", 3, spec=1))
    changes: list[Change[Any]] = []
    store.subscribe(changes.extend)
    for version, spec in ((15, 2), (15, 2), (13, 9), (15, 2)):
        store.apply_event("MODIFIED", item("a", version, spec=spec))
    assert store.get("a") == 2
    assert changes == [Change(Key("", "a"), 1, 2)]


def test_equal_records_are_no_change_but_the_version_moves() -> None:
    store = store_of(item("a", 3, spec=1))
    changes: list[Change[Any]] = []
    store.subscribe(changes.extend)
    store.apply_event("MODIFIED", item("a", 15, spec=1, status={"heartbeat": 1}))
    assert changes == []
    entry = store.entry("a")
    assert entry is not None and entry.resource_version == 15


def test_namespaces_are_kept_apart() -> None:
    store: Store[Any] = Store(lambda found: found["spec"])
    for number, namespace in enumerate(("x", "y")):
        one = item("a", 5, uid=namespace, spec=number)
        one["metadata"]["namespace"] = namespace
        store.apply_event("ADDED", one)
    assert store.get("a", "x") == 0 and store.get("a", "y") == 1 and store.get("a") is None
    assert [str(key) for key, _ in store.items()] == ["x/a", "y/a"]
    assert Key("x", "a") in store and Key("z", "a") not in store


def test_a_server_set_back_is_believed_when_the_list_was_asked_for_later() -> None:
    store = store_of(item("a", 900, spec="late"), item("b", 901), version=1000)
    store.apply_event("DELETED", item("c", 1001))
    assert listed(store, 500, item("a", 400, spec="restored"), item("c", 401), restart=True)
    assert names(store) == ["a", "c"]
    assert store.get("a") == "restored"
    store.apply_event("MODIFIED", item("a", 501, spec="edited"))
    assert store.get("a") == "edited"


def test_an_object_that_cannot_be_read_is_reported_and_is_not_absent() -> None:
    def compact(found: dict[str, Any]) -> int:
        return int(found["spec"])

    store: Store[int] = Store(compact)
    store.replace([store.convert(item("good", 3, spec=1)), store.convert(item("bad", 4, spec="x"))], 10)
    assert names(store) == ["bad", "good"]
    assert [str(key) for key, _ in store.items()] == ["good"]
    assert "ValueError" in store.broken[Key("", "bad")]
    store.apply_event("MODIFIED", item("good", 15, spec="y"))
    assert store.get("good") == 1, "the last readable state goes on"
    assert set(store.broken) == {Key("", "good"), Key("", "bad")}
    store.apply_event("MODIFIED", item("good", 16, spec=1))
    store.apply_event("DELETED", item("bad", 17))
    assert not store.broken


def test_becoming_unreadable_and_readable_again_are_changes() -> None:
    store: Store[int] = Store(lambda found: int(found["spec"]))
    store.replace([store.convert(item("a", 3, spec=1))], 10)
    seen: list[int] = []
    store.subscribe(lambda changes: seen.append(len(changes)))
    store.apply_event("MODIFIED", item("a", 11, spec="x"))
    store.apply_event("MODIFIED", item("a", 12, spec=1))
    assert seen == [1, 1]


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        None,
        {"name": "a"},
        {"name": "a", "uid": "u"},
        {"name": "a", "uid": "u", "resourceVersion": ""},
        {"name": "a", "uid": "u", "resourceVersion": "1a"},
        {"name": "a", "uid": "u", "resourceVersion": "-1"},
        {"name": "a", "uid": "u", "resourceVersion": "٣"},
    ],
)
def test_objects_without_sound_metadata_are_refused_and_change_nothing(metadata: Any) -> None:
    store = store_of(item("a", 3))
    for kind in ("ADDED", "MODIFIED", "DELETED"):
        with pytest.raises(MalformedObject):
            store.apply_event(kind, {"metadata": metadata})
    assert names(store) == ["a"]


def test_bookmarks_and_unknown_events_are_ignored() -> None:
    store = store_of(item("a", 3))
    store.apply_event("BOOKMARK", {"metadata": {"resourceVersion": "50"}})
    store.apply_event("SOMETHING", {})
    assert names(store) == ["a"]


def test_a_known_object_is_renewed_from_its_record_and_another_incarnation_is_read_anew() -> None:
    def renew(found: dict[str, Any], record: str) -> str:
        return f"{record}+{found['spec']}"

    store: Store[str] = Store(lambda found: str(found["spec"]), renew=renew)
    listed(store, 1, item("a", 1, spec="one"))
    store.apply_event("MODIFIED", item("a", 2, spec="two"))
    assert store.get("a") == "one+two"
    listed(store, 3, item("a", 3, spec="three"))
    assert store.get("a") == "one+two+three"
    store.apply_event("ADDED", item("a", 4, uid="another", spec="four"))
    assert store.get("a") == "four"


def test_a_subscriber_that_fails_keeps_neither_the_store_nor_the_others_from_working() -> None:
    store = store_of()
    heard: list[str] = []

    def fails(_: Sequence[Change[Any]]) -> None:
        raise RuntimeError("broken subscriber")

    store.subscribe(fails)
    unsubscribe = store.subscribe(lambda changes: heard.extend(str(change.key) for change in changes))
    store.apply_event("ADDED", item("a", 15))
    unsubscribe()
    unsubscribe()
    store.apply_event("ADDED", item("b", 16))
    assert heard == ["a"] and names(store) == ["a", "b"]
