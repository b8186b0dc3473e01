"""Whatever users, orders, crashes and reboots do, what somebody has is never written to, and in the end all is as
ordered.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from random import Random

import pytest

from crds.device_names import NamedKind
from dra_publisher.handover.hand_over import HandOver, Looked
from dra_publisher.offers.offer import Offer
from node_host.acting import executor
from node_host.acting.actions import Outcome
from node_host.handover import tokens
from node_host.handover.binder_half import BinderHalf
from node_host.handover.entry import entry_digest
from node_host.handover.publisher_half import PublisherHalf
from node_host.handover.token_files import TokenFiles
from node_host.handover.tokens import read_token, taken_name
from node_host.view import HostView
from tests.builders.binder import NPU, order, spec
from tests.builders.hand_over_machines import LAYOUTS, Machine
from tests.builders.hand_over_world import InUseError, World

EPISODES = 2000
HUNTS = 300
ACTS = (3, 9)
FLOORS = {
    "writes": 2000,
    "allocated": 1000,
    "opened": 600,
    "binder killed": 120,
    "publisher killed": 120,
    "reboots": 120,
}


def episode(machine: Machine, number: int, acts: int | None = None) -> Counter[str]:
    """One episode, always the same for a number; with ``acts`` a longer one that is not brought to rest."""
    random = Random(number)
    world = World(machine, random)
    try:
        world.live(acts or random.randint(*ACTS))
        if acts is None:
            world.settle()
    except BaseException as error:
        error.add_note(f"episode {number} on {machine.layout.name}; {dict(world.seen)}")
        raise
    finally:
        world.close()
    return world.seen


@pytest.fixture(scope="module")
def machines() -> Iterator[list[Machine]]:
    made = [Machine(layout) for layout in LAYOUTS]
    yield made
    for machine in made:
        machine.close()


def test_nothing_that_somebody_has_is_written_to_and_everything_arrives(machines: list[Machine]) -> None:
    seen: Counter[str] = Counter()
    ran = 0
    for number in range(EPISODES):
        seen += episode(machines[number % len(machines)], number)
        ran += 1
    print(f"examples: {ran}; {dict(sorted(seen.items()))}")
    assert ran >= EPISODES
    assert {what: seen[what] for what, floor in FLOORS.items() if seen[what] < floor} == {}


def _nobody(view: HostView) -> HostView:
    return dataclasses.replace(view, users=dict.fromkeys(view.users, ()))


def use_is_not_looked_at_again(patch: pytest.MonkeyPatch) -> None:
    """The binder's executor trusts the look that the plan was made from."""
    for name in ("refusal", "card_refusal"):
        judge: Callable[..., Outcome | None] = getattr(executor, name)
        patch.setattr(executor, name, lambda view, *rest, judge=judge: judge(_nobody(view), *rest))


def tokens_are_for_any_orders(patch: pytest.MonkeyPatch) -> None:
    """The binder acts on a token whatever orders it was written for."""
    patch.setattr(tokens, "_fits", lambda token, boot_id, _: token is not None and token.boot_id == boot_id)
    patch.setattr(BinderHalf, "_taken", lambda self, address, *_: read_token(self._files, taken_name(address), address))


def tokens_are_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    """The binder takes no heed of the list of what pods may have."""
    patch.setattr(HostView, "not_handed_over", lambda *_: None)
    patch.setattr(BinderHalf, "take", lambda *_: None)


def what_goes_along_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The binder asks for the token of the device itself alone."""
    patch.setattr(HostView, "going_along", lambda self, address: (address,))


def nobody_is_kept_away(patch: pytest.MonkeyPatch) -> None:
    """The publisher leaves a device that it hands over open to new users."""

    async def standing(self: HandOver, looked: Looked, address: str, verdict: object) -> Offer | None:
        before = self.offers.get(address)
        return None if before is None else dataclasses.replace(before, taints=())

    patch.setattr(HandOver, "_standing", standing)


def claims_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """The publisher does not ask who has a device."""
    patch.setattr(HandOver, "_users", lambda *_: ())


def devices_are_not_noted(patch: pytest.MonkeyPatch) -> None:
    """The publisher puts devices into slices without a note that whoever changes them could read."""
    write = PublisherHalf.write_published

    def never(self: PublisherHalf, addresses: Collection[str], boot_id: str, *, locks: Collection[str] = ()) -> None:
        if not locks:
            write(self, addresses, boot_id)

    patch.setattr(PublisherHalf, "write_published", never)


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the binder does not look at use again": use_is_not_looked_at_again,
    "the binder asks for no token": tokens_are_not_asked_for,
    "the binder forgets what goes along": what_goes_along_is_forgotten,
    "the publisher does not withhold": nobody_is_kept_away,
    "the publisher does not wait for claims": claims_are_not_waited_for,
    "the publisher does not note what it publishes": devices_are_not_noted,
}


def left_behind(machine: Machine) -> None:
    """A token of former orders lies beside a published device, as if a publisher had died before it removed it; a claim
    gets the device, and the orders change.
    """
    world = World(machine, Random(0))
    world.quiet = True
    try:
        world.order(order())
        world.binder_pass()
        world.look()
        assert world.slices[NPU].kind is NamedKind.VFIO
        assert world.publisher.prepare_refused(NPU) is None
        former = entry_digest(spec(order()).devices[0])
        PublisherHalf(world.kernel.host()).offer(NPU, world.kernel.boot_id, former)
        assert BinderHalf(TokenFiles(world.kernel.host())).take(NPU, world.kernel.boot_id, {former}) is None
        world.claims[NPU] = world.kernel.boot_id
        world.order(order(mode="Container"))
        world.binder_pass()
        world.refuse_faults()
    finally:
        world.close()


def test_a_token_of_other_orders_is_no_token(machines: list[Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    left_behind(machines[0])
    tokens_are_for_any_orders(monkeypatch)
    with pytest.raises(InUseError, match="allocated to a claim"):
        left_behind(machines[0])


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_of_either_is_found(name: str, machines: list[Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    for number in range(HUNTS):
        try:
            episode(machines[number % len(machines)], number, acts=60)
        except InUseError as error:
            print(f"found in episode {number}: {error}")
            return
    pytest.fail(f"not found in {HUNTS} episodes")
