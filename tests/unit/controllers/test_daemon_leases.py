"""Which daemons are silent, whatever the clocks of their nodes say."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from controllers.daemon_leases import Daemon, LeaseBook, LeaseReader
from runtime.lease import daemon_lease_name
from runtime.resources import LEASES, NAMESPACE
from tests.builders.fake_api import FakeApi
from tests.builders.waiting import until

START = datetime(2026, 11, 30, 12, tzinfo=UTC)
BINDER = Daemon("npufleet-vfio-binder", "node-atom")
NAME = "npufleet-vfio-binder.node-atom"


def text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Lists:
    """One list every five minutes."""

    def __init__(self) -> None:
        self.book = LeaseBook()
        self.now = START

    def read(self, renewals: Mapping[str, str]) -> bool:
        """Whether the binder is silent after this list."""
        self.book.update(renewals, [BINDER], self.now)
        self.now += timedelta(minutes=5)
        return "npufleet-vfio-binder" in self.book.silent().get("node-atom", ())


def test_daemon_that_renews_is_alive_and_one_that_stopped_is_silent_after_fifteen_minutes() -> None:
    lists = Lists()
    assert not lists.read({NAME: text(START)})
    assert not lists.read({NAME: text(START + timedelta(minutes=5))})
    last = {NAME: text(START + timedelta(minutes=10))}
    assert [lists.read(last) for _ in range(5)] == [False, False, False, False, True]


def test_lease_that_was_old_at_the_first_list_is_silent_at_once() -> None:
    assert Lists().read({NAME: text(START - timedelta(minutes=16))})


def test_node_whose_clock_is_behind_is_alive_while_it_renews() -> None:
    lists = Lists()
    lists.read({NAME: text(START - timedelta(hours=3))})
    assert not lists.read({NAME: text(START - timedelta(hours=3) + timedelta(minutes=5))})
    assert not lists.read({NAME: text(START - timedelta(hours=3) + timedelta(minutes=10))})


def test_node_whose_clock_runs_ahead_is_not_alive_for_ever() -> None:
    lists = Lists()
    ahead = {NAME: text(START + timedelta(days=365))}
    assert [lists.read(ahead) for _ in range(5)] == [False, False, False, False, True]


def test_daemon_that_reported_and_has_no_lease_is_silent_in_time() -> None:
    lists = Lists()
    assert [lists.read({}) for _ in range(5)] == [False, False, False, False, True]
    assert not lists.read({NAME: text(lists.now)})


def test_nonsense_in_a_lease_is_as_good_as_a_renewal_once() -> None:
    lists = Lists()
    assert [lists.read({NAME: "yesterday"}) for _ in range(5)] == [False, False, False, False, True]


def test_daemon_that_nobody_expects_any_more_is_forgotten() -> None:
    book = LeaseBook()
    book.update({}, [BINDER], START - timedelta(hours=1))
    book.update({}, [BINDER], START)
    assert book.silent() == {"node-atom": frozenset({"npufleet-vfio-binder"})}
    book.update({}, [], START)
    assert book.silent() == {}


async def test_list_that_fails_makes_nobody_older() -> None:
    async with FakeApi() as server, server.client() as api:
        server.objects.create(LEASES, {"metadata": {"name": NAME}, "spec": {"renewTime": text(START)}}, NAMESPACE)
        now = START
        meanwhile: list[dict[str, frozenset[str]]] = []
        told: list[dict[str, frozenset[str]]] = []

        async def sleep(seconds: float) -> None:
            meanwhile.append(dict(reader.silent))
            if len(meanwhile) == 3:
                server.heal()
            if told:
                await asyncio.Event().wait()

        reader = LeaseReader(
            api, lambda: [BINDER], lambda: told.append(dict(reader.silent)), now=lambda: now, sleep=sleep
        )
        await reader.read()
        now = START + timedelta(hours=2)
        server.fail("LIST", LEASES, code=403, reason="Forbidden")
        task = asyncio.create_task(reader.run())
        await until(lambda: told)
        task.cancel()
        assert meanwhile[:3] == [{}, {}, {}]
        assert told == [{"node-atom": frozenset({"npufleet-vfio-binder"})}]


def test_long_names_are_found_under_their_short_lease_name() -> None:
    daemon = Daemon("npufleet-vfio-binder", "n" * 250)
    book = LeaseBook()
    name = daemon_lease_name(daemon.component, daemon.node)
    assert len(name) <= 253
    book.update({name: text(START - timedelta(hours=1))}, [daemon], START)
    assert book.silent() == {daemon.node: frozenset({daemon.component})}
