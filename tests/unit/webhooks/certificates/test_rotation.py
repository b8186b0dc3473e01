"""The built-in rotation, years in seconds: nobody who is asked ever serves what the API server does not trust."""

from __future__ import annotations

import asyncio
import base64
import random
from datetime import timedelta

import pytest

from runtime.certificates import hosts_of, new_authority, new_leaf
from runtime.resources import SECRETS, VALIDATING_WEBHOOKS
from tests.builders.webhook_cluster import VALIDATING, configuration
from tests.builders.webhook_replicas import HOST, QUICK, Replica, World
from webhooks.certificates.configurations import FIELD_MANAGER
from webhooks.certificates.rotation import SECRET

HOURS_OF_ALL = 4 * 36.0


def two(world: World) -> tuple[Replica, Replica]:
    return Replica(world, "one"), Replica(world, "two", pause=1150.0)


def assert_sound(world: World) -> None:
    assert not world.refusals, world.refusals[:3]
    for replica in world.replicas:
        assert replica.keeper.fault() is None, (replica.name, replica.keeper.fault())
    held = world.held()
    assert held.newest is not None
    assert held.leaf is not None
    assert held.leaf.is_valid(world.now())
    assert all(bundle == held.bundle for bundle in world.bundles(0.0)), "every entry of every configuration"


async def test_empty_secret_becomes_a_trusted_certificate_in_one_look() -> None:
    world = World()
    one = Replica(world, "one")
    await one.look()
    await one.look()
    assert one.keeper.fault() is None
    assert_sound(world)
    assert hosts_of(world.held().leaf.leaf) == {HOST}  # type: ignore[union-attr]


async def test_authorities_and_certificates_change_for_days_without_a_refused_handshake() -> None:
    world = World()
    replicas = two(world)
    served: set[str] = set()
    trusted: set[int] = set()
    for _ in range(int(HOURS_OF_ALL)):
        await world.run(1.0)
        trusted |= world.authorities_trusted()
        served |= {one.serving.pair.digest for one in replicas if one.serving.pair is not None}
        assert_sound(world)
    assert len(trusted) >= 4, "authorities changed"
    assert len(served) >= 12, "certificates changed"
    assert len(world.authorities_trusted()) <= 2, "former authorities go"


async def test_authority_outlives_every_certificate_that_it_has_signed() -> None:
    world = World()
    two(world)
    for _ in range(int(HOURS_OF_ALL)):
        await world.run(1.0)
        held = world.held()
        assert held.newest is not None
        assert held.leaf is not None
        signer = next(one for one in held.authorities if held.leaf.is_trusted_by(_pem(one), world.now()))
        assert held.leaf.ends <= signer.not_valid_after_utc


async def test_nothing_is_written_while_nothing_is_due() -> None:
    world = World()
    two(world)
    await world.run(0.5)
    world.cluster.writes.clear()
    await world.run(6.0)
    assert world.cluster.writes == []


async def test_second_replica_serves_what_the_first_has_made() -> None:
    world = World()
    one, other = two(world)
    await world.run(0.1)
    assert one.serving.pair is not None
    assert other.serving.pair is not None
    assert one.serving.pair.digest == other.serving.pair.digest


def calls_of_a_change() -> list[int]:
    """The numbers of the calls around every write from when a new authority is due until the old one has gone."""

    async def count() -> list[int]:
        world = World()
        two(world)
        await world.run(11.0)
        found: set[int] = set()
        while world.seconds < 15 * 3600:
            written = len(world.cluster.writes)
            await world.run(0.05)
            if len(world.cluster.writes) > written:
                found |= set(range(world.calls - 12, world.calls + 4))
        return sorted(found)

    return asyncio.run(count())


def test_death_at_any_call_of_the_installation_heals() -> None:
    for number in range(40):
        world = World(deaths={number})
        two(world)
        asyncio.run(world.run(1.0))
        assert_sound(world)


def test_death_at_any_call_while_authorities_change_heals_without_a_refused_handshake() -> None:
    numbers = calls_of_a_change()
    assert len(numbers) > 30
    died = 0
    for number in numbers:
        world = World(deaths={number})
        replicas = two(world)
        asyncio.run(world.run(16.0))
        died += sum(one.deaths for one in replicas)
        assert_sound(world)
    assert died == len(numbers)
    print(f"{died} deaths, one in each run")


@pytest.mark.parametrize("seed", range(6))
def test_deaths_all_the_time_heal_without_a_refused_handshake(seed: int) -> None:
    choose = random.Random(seed)
    world = World(deaths={number for number in range(100_000) if choose.random() < 0.05})
    replicas = two(world)
    asyncio.run(world.run(60.0))
    world.deaths.clear()
    asyncio.run(world.run(1.0))
    assert sum(one.deaths for one in replicas) > 50
    assert_sound(world)


async def test_secret_that_was_emptied_is_made_anew_without_a_refused_handshake() -> None:
    world = World()
    two(world)
    await world.run(2.0)
    emptied = world.cluster.find(SECRETS, SECRET)
    emptied.pop("data")
    world.cluster.put(SECRETS, emptied)
    await world.run(5.0)
    assert_sound(world)
    assert len(world.authorities_trusted()) == 1, "the lost authority goes in the end"


async def test_secret_that_is_missing_is_told_and_the_served_certificate_goes_on() -> None:
    world = World()
    one, _ = two(world)
    await world.run(1.0)
    world.cluster.remove(SECRETS, SECRET)
    await world.run(1.0)
    assert one.keeper.fault() is None
    assert "apply kustomize/components/certificates-built-in" in (one.keeper.source_fault or "")
    fresh = Replica(world, "fresh")
    await fresh.look()
    assert "Secret npufleet-system/npufleet-webhook-tls is missing" in (fresh.keeper.fault() or "")


@pytest.mark.parametrize("garbage", ["!", "AAAA", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==", 7, None])
@pytest.mark.parametrize("key", ["tls.crt", "tls.key", "ca.crt", "ca.key"])
async def test_secret_with_garbage_heals(key: str, garbage: object) -> None:
    world = World()
    two(world)
    await world.run(1.0)
    spoilt = world.cluster.find(SECRETS, SECRET)
    spoilt["data"][key] = garbage
    world.cluster.put(SECRETS, spoilt)
    await world.run(4.0)
    assert_sound(world)


async def test_bundle_that_was_erased_is_set_again() -> None:
    world = World()
    one, _ = two(world)
    await world.run(1.0)
    world.cluster.put(
        VALIDATING_WEBHOOKS, configuration(VALIDATING.name, ("objects.npufleet.io", "b.x.y", "a.third.one"))
    )
    await one.look()
    await world.run(0.5)
    for replica in world.replicas:
        assert replica.keeper.fault() is None
    assert all(bundle == world.held().bundle for bundle in world.bundles(0.0))


async def test_nothing_of_a_configuration_is_owned_for_longer_than_a_look() -> None:
    """Of what is owned beside Git, Git could take nothing away."""
    world = World(deaths={number for number in range(60) if number % 7 == 3})
    two(world)
    await world.run(2.0)
    former = world.cluster.find(VALIDATING_WEBHOOKS, VALIDATING.name)
    assert [one["manager"] for one in former["metadata"]["managedFields"]] == ["git"]
    former["metadata"]["managedFields"].append({"manager": FIELD_MANAGER, "operation": "Apply"})
    world.cluster.put(VALIDATING_WEBHOOKS, former)
    await world.run(1.0)
    healed = world.cluster.find(VALIDATING_WEBHOOKS, VALIDATING.name)
    assert [one["manager"] for one in healed["metadata"]["managedFields"]] == ["git"]
    assert_sound(world)


async def test_configuration_that_does_not_exist_yet_keeps_nobody_from_being_ready() -> None:
    world = World()
    world.cluster.remove(VALIDATING_WEBHOOKS, VALIDATING.name)
    one = Replica(world, "one")
    await one.look()
    assert one.keeper.fault() is None
    world.cluster.put(VALIDATING_WEBHOOKS, configuration(VALIDATING.name, ("objects.npufleet.io",)))
    await one.look()
    assert one.keeper.fault() is not None, "nobody trusts it yet"
    await one.look()
    assert one.keeper.fault() is None


async def test_certificate_without_a_name_that_is_asked_for_is_made_anew() -> None:
    world = World()
    two(world)
    await world.run(1.0)
    more = Replica(world, "more", hosts=frozenset({HOST, "127.0.0.1"}))
    await more.look()
    assert "the certificate is not for 127.0.0.1" in (more.keeper.fault() or "")
    world.replicas = [more]
    await world.run(1.0)
    assert more.keeper.fault() is None
    assert not world.refusals


async def test_everything_that_ended_while_nobody_ran_is_made_anew() -> None:
    world = World()
    one, _ = two(world)
    await world.run(1.0)
    world.replicas.clear()
    world.seconds += 100 * QUICK.authority.total_seconds()
    fresh = Replica(world, "fresh")
    await world.run(1.0)
    assert fresh.keeper.fault() is None
    assert one.keeper.fault() is not None, "its certificate has ended"
    assert len(world.authorities_trusted()) == 1


@pytest.mark.parametrize("skew", [timedelta(days=days) for days in (31, -60, 400, -400)], ids=str)
async def test_replica_with_a_wrong_clock_is_not_ready_and_writes_nothing(skew: timedelta) -> None:
    world = World()
    two(world)
    await world.run(1.0)
    world.cluster.writes.clear()
    before = world.held().data()
    wrong = Replica(world, "wrong", skew=skew)
    await world.run(1.0)
    assert world.cluster.writes == []
    assert world.held().data() == before
    assert str(abs(skew).days * 86400) in ((await wrong.rotation.look()).doubt or "")
    assert wrong.keeper.fault() is not None
    wrong.skew = timedelta()
    await world.run(1.0)
    assert_sound(world)


async def test_wrong_clock_at_the_installation_makes_no_certificate() -> None:
    world = World()
    wrong = Replica(world, "wrong", skew=timedelta(days=31))
    await world.run(0.5)
    assert world.cluster.writes == []
    assert wrong.keeper.fault() is not None
    two(world)
    await world.run(0.5)
    assert world.held().leaf is not None


async def test_replicas_with_other_names_come_to_one_certificate_for_all_of_them() -> None:
    world = World()
    for number in range(3):
        Replica(world, f"r{number}", hosts=frozenset({HOST, f"10.0.0.{number}"}), pause=10.0)
    await world.run(1.0)
    assert_sound(world)
    assert world.held().leaf.hosts == {HOST, *(f"10.0.0.{number}" for number in range(3))}  # type: ignore[union-attr]
    world.cluster.writes.clear()
    await world.run(3.0)
    assert world.cluster.writes == []
    await world.run(60.0)
    assert_sound(world)


async def test_name_that_no_replica_has_any_more_goes_with_the_certificate() -> None:
    world = World()
    Replica(world, "former", hosts=frozenset({HOST, "10.0.0.9"}))
    await world.run(1.0)
    world.replicas.clear()
    two(world)
    await world.run(24.0)
    assert world.held().leaf.hosts == {HOST}  # type: ignore[union-attr]


def foreign_data(world: World) -> dict[str, str]:
    """A pair of an authority that nobody trusts, beside the authorities that there are."""
    signer = new_authority("foreign", now=world.now(), lifetime=timedelta(days=9))
    pair = new_leaf(signer, "foreign", hosts=[HOST], now=world.now(), lifetime=timedelta(days=1))
    values = {"tls.crt": pair.certificate, "tls.key": pair.key}
    return {key: base64.b64encode(value).decode() for key, value in values.items()}


async def test_pair_of_somebody_else_is_replaced_before_a_young_replica_serves_it() -> None:
    world = World()
    young = Replica(world, "young", pause=15.0)
    await world.run(0.01)
    put = world.cluster.find(SECRETS, SECRET)
    put["data"] |= foreign_data(world)
    world.cluster.put(SECRETS, put)
    foreign = world.held().leaf
    assert foreign is not None
    while world.held().leaf.digest == foreign.digest:  # type: ignore[union-attr]
        await world.run(0.002)
        assert young.serving.pair is not None
        assert young.serving.pair.digest != foreign.digest
        assert world.seconds < 3600
    await world.run(0.5)
    assert_sound(world)


async def test_secret_that_somebody_else_spoils_all_the_time_is_written_now_and_then_only() -> None:
    world = World()
    one = Replica(world, "one", pause=15.0)
    await world.run(1.0)
    served = one.serving.pair
    world.cluster.writes.clear()
    told = ""
    for _ in range(900):
        spoilt = world.cluster.find(SECRETS, SECRET)
        spoilt["data"] = {"tls.crt": "AAAA"}
        world.cluster.put(SECRETS, spoilt)
        await world.run(3 / 3600)
        told = told or (one.keeper.source_fault or "")
    written = world.cluster.writes.count(f"replace {SECRET}")
    assert 0 < written <= 6
    assert "see who else writes it" in told
    assert served is not None
    await world.run(3.0)
    assert_sound(world)


def _pem(certificate: object) -> bytes:
    from runtime.certificates import pem

    return pem(certificate)  # type: ignore[arg-type]
