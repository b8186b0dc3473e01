"""However lists and events are delayed, doubled, reordered or lost, the store tells what the newest of them told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.store import Change, Key, Store
from tests.builders.examples import at_least

NAMES = ("a", "b", "c")
FLOOR = 2000


@dataclass(frozen=True)
class Told:
    """One message of the server: an event about one name, or a list (`kind` LIST) of all of them."""

    kind: str
    version: int
    objects: tuple[tuple[str, str, int], ...]  # name, uid, resourceVersion


class Server:
    """The truth: what exists at each version, and the messages that it gives rise to."""

    def __init__(self) -> None:
        self.version = 10
        self.visible: dict[str, tuple[str, int]] = {}
        self.hidden: dict[str, str] = {}
        self.incarnations = 0
        self.messages: list[Told] = []

    def act(self, action: str, name: str) -> None:
        present = self.visible.get(name)
        if action == "list":
            found = tuple((one, uid, version) for one, (uid, version) in sorted(self.visible.items()))
            self.messages.append(Told("LIST", self.version, found))
            return
        self.version += 1
        if action == "write":
            uid = present[0] if present else self.hidden.pop(name, "") or self._new()
            self.visible[name] = (uid, self.version)
            self.messages.append(Told("MODIFIED" if present else "ADDED", self.version, ((name, uid, self.version),)))
        elif action in {"delete", "hide"} and present:
            del self.visible[name]
            if action == "hide":  # it no longer matches the selector, and may come back with the same UID
                self.hidden[name] = present[0]
            self.messages.append(Told("DELETED", self.version, ((name, present[0], self.version),)))

    def _new(self) -> str:
        self.incarnations += 1
        return f"uid-{self.incarnations}"


def deliver(store: Store[int], told: Told) -> None:
    items = [
        {"metadata": {"name": name, "uid": uid, "resourceVersion": str(version)}} for name, uid, version in told.objects
    ]
    if told.kind == "LIST":
        store.replace([store.convert(one) for one in items], told.version)
    else:
        store.apply_event(told.kind, items[0])


def newest_knowledge(delivered: list[Told]) -> dict[str, tuple[str, int]]:
    """By definition: for each name, the message of the highest version that says something about it."""
    latest: dict[str, tuple[int, tuple[str, int] | None]] = {}
    for told in delivered:
        about: dict[str, tuple[str, int] | None] = {}
        if told.kind == "LIST":
            about = dict.fromkeys(NAMES)
        for name, uid, version in told.objects:
            about[name] = None if told.kind == "DELETED" else (uid, version)
        for name, state in about.items():
            if name not in latest or told.version > latest[name][0]:
                latest[name] = (told.version, state)
    return {name: state for name, (_, state) in latest.items() if state is not None}


def content(store: Store[int]) -> dict[str, tuple[str, int]]:
    return {entry.key.name: (entry.uid, entry.resource_version) for entry in store.entries()}


ACTIONS = st.lists(
    st.tuples(st.sampled_from(("write", "write", "delete", "hide", "list")), st.sampled_from(NAMES)), max_size=14
)


def test_the_store_is_what_the_newest_messages_say_in_any_order_of_arrival() -> None:
    with at_least(FLOOR, "store against its definition") as examples:

        @settings(max_examples=2100, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(actions=ACTIONS, data=st.data())
        def check(actions: list[tuple[str, str]], data: st.DataObject) -> None:
            examples.one()
            server = Server()
            for action, name in actions:
                server.act(action, name)
            arrivals = [
                server.messages[index]
                for index in data.draw(
                    st.lists(st.integers(0, max(0, len(server.messages) - 1)), max_size=24)
                    if server.messages
                    else st.just([])
                )
            ]
            store: Store[int] = Store(lambda item: int(item["metadata"]["resourceVersion"]))
            mirror: dict[Key, int] = {}

            def follow(changes: Any) -> None:
                change: Change[int]
                for change in changes:
                    assert mirror.get(change.key) == change.old
                    if change.new is None:
                        del mirror[change.key]
                    else:
                        mirror[change.key] = change.new

            store.subscribe(follow)
            delivered: list[Told] = []
            for told in arrivals:
                deliver(store, told)
                delivered.append(told)
                assert content(store) == newest_knowledge(delivered)
                # Who only listens to notifications knows the same.
                assert mirror == dict(store.items())
                assert len(store) == len(store.keys())

        check()


def test_after_the_next_list_the_store_equals_the_server_and_nothing_late_changes_that() -> None:
    with at_least(FLOOR, "store after a list") as examples:

        @settings(max_examples=2100, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(actions=ACTIONS, data=st.data())
        def check(actions: list[tuple[str, str]], data: st.DataObject) -> None:
            examples.one()
            server = Server()
            for action, name in actions:
                server.act(action, name)
            store: Store[int] = Store(lambda item: int(item["metadata"]["resourceVersion"]))
            some = st.lists(st.sampled_from(server.messages), max_size=12) if server.messages else st.just([])
            for told in data.draw(some):
                deliver(store, told)
            server.act("list", "")
            deliver(store, server.messages[-1])
            assert content(store) == server.visible
            for told in data.draw(some):
                deliver(store, told)
            assert content(store) == server.visible

        check()
