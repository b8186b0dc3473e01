"""Both halves of a hand-over at once: every order of their steps, and a death of either after each of its steps.

What is at stake in each: that nobody changes a device that pods may have, and that no device is lost between the two.
"""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from node_host.acting.locks import LockedError, Locks
from node_host.handover.binder_half import BinderHalf
from node_host.handover.publisher_half import PublisherHalf
from node_host.handover.token_files import TokenFiles
from node_host.handover.tokens import read_tokens
from node_host.host import KernelFiles
from tests.builders.interleaving import Gate, StepFiles, Turns, every_order, interleave

CARD = "0000:23:00.0"
BOOT, BEFORE = "0b5c8f6e-0f57-4b1e-9d5e-7a0c4f1b2d3e", "11111111-0f57-4b1e-9d5e-7a0c4f1b2d3e"
OLD, NEW = "1" * 64, "2" * 64
LOCKS = ("group-20",)
FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None


def _begin() -> None:
    """A step of its own, so that it is open who is the first to take the locks."""


class World:
    """A host with a device, and what is true of it whatever the two believe."""

    def __init__(self, root: Path) -> None:
        self.host = KernelFiles(root)
        self.publisher = PublisherHalf(self.host)
        self.binder = BinderHalf(TokenFiles(self.host))
        self.offered_to_pods = False
        self.changing = False
        self.changes: list[str] = []
        self.refused_throughout = True

    def look(self) -> None:
        """After each step of either: nobody changes what pods may have."""
        assert not (self.changing and self.offered_to_pods)
        refused = self.publisher.prepare_refused(CARD) is not None
        assert not self.changing or refused, "a pod could be prepared while the device is changed"
        self.refused_throughout &= refused

    def bind(self, gate: Gate, entry: str) -> None:
        """The binder: under the locks, with the token, it changes the device in two steps."""
        half = BinderHalf(StepFiles(self.host, gate))
        gate.step(_begin)
        try:
            with Locks(self.host, LOCKS, owner="binder"):
                if half.take(CARD, BOOT, frozenset({entry})) is not None:
                    return
                self.changing = True
                try:
                    for _ in range(2):
                        gate.step(lambda: self.changes.append(entry))
                finally:
                    self.changing = False
        except LockedError:
            pass

    def revert(self, gate: Gate) -> None:
        """The publisher: the orders are as before again, so it takes the device back, and offers it to pods."""
        half = PublisherHalf(self.host, StepFiles(self.host, gate))
        if half.withdraw(CARD):
            gate.step(self._offer_to_pods)

    def _offer_to_pods(self) -> None:
        self.offered_to_pods = True

    def renew(self, gate: Gate) -> None:
        half = PublisherHalf(self.host, StepFiles(self.host, gate))
        with suppress(LockedError):
            half.renew(CARD, BOOT, NEW, locks=LOCKS)

    def finish(self, gate: Gate) -> None:
        """The publisher: the device is as ordered; it ends the hand-over and offers it to pods, under the locks."""
        half = PublisherHalf(self.host, StepFiles(self.host, gate))
        gate.step(_begin)
        try:
            with half.locked(LOCKS):
                half.finish_locked(CARD)
                gate.step(self._offer_to_pods)
        except LockedError:
            pass


def tried(
    prepare: Callable[[World], None],
    processes: Callable[[World], dict[str, Callable[[Gate], None]]],
    check: Callable[[World, dict[str, Gate]], None],
) -> int:
    """All runs of a scene; how many there were."""
    runs = 0

    def run(turns: Turns, kill: tuple[str, int] | None) -> dict[str, Gate]:
        nonlocal runs
        runs += 1
        root = Path(tempfile.mkdtemp(prefix="races-", dir=FAST))
        try:
            world = World(root)
            prepare(world)
            gates = interleave(processes(world), turns, kill=kill, between=world.look)
            check(world, gates)
        except AssertionError as error:
            error.add_note(f"turns {turns.chosen}, killed {kill}")
            raise
        finally:
            shutil.rmtree(root)
        return gates

    for _ in every_order(run):
        pass
    return runs


def again(world: World, work: Callable[[Gate], None]) -> None:
    """A process that was started again, alone."""
    interleave({"alone": work}, Turns(), between=world.look)


def test_of_taking_and_withdrawing_one_wins() -> None:
    won = {"binder": 0, "publisher": 0}

    def check(world: World, gates: dict[str, Gate]) -> None:
        if world.changes:
            won["binder"] += 1
            assert not world.offered_to_pods
        if world.offered_to_pods:
            won["publisher"] += 1
            assert world.changes == []
        if not any(gate.killed for gate in gates.values()):
            assert (world.changes != []) is not world.offered_to_pods
        # Whoever died is started again: the device is not lost to both.
        tokens = read_tokens(TokenFiles(world.host))
        if not world.offered_to_pods and not tokens.taken:
            again(world, world.revert)
            assert world.offered_to_pods or gates["publisher"].killed
        if tokens.taken:
            again(world, lambda gate: world.bind(gate, OLD))
            assert OLD in world.changes

    runs = tried(
        lambda world: world.publisher.offer(CARD, BOOT, OLD),
        lambda world: {"binder": lambda gate: world.bind(gate, OLD), "publisher": world.revert},
        check,
    )
    print(f"{runs} runs, won by {won}")
    assert runs >= 300
    assert min(won.values()) >= 20


@pytest.mark.parametrize("orders", [OLD, NEW], ids=["a binder with the orders before", "a binder with the new ones"])
def test_a_renewal_leaves_no_moment_without_a_token_and_no_change_for_orders_that_are_gone(orders: str) -> None:
    def prepare(world: World) -> None:
        world.publisher.offer(CARD, BOOT, OLD)
        assert world.binder.take(CARD, BOOT, {OLD}) is None

    def check(world: World, gates: dict[str, Gate]) -> None:
        assert world.refused_throughout
        assert set(world.changes) <= {orders}
        again(world, world.renew)
        before = list(world.changes)
        again(world, lambda gate: world.bind(gate, OLD))
        assert world.changes == before, "the token of the orders before is gone"
        again(world, lambda gate: world.bind(gate, NEW))
        assert NEW in world.changes

    runs = tried(
        prepare,
        lambda world: {"binder": lambda gate: world.bind(gate, orders), "publisher": world.renew},
        check,
    )
    print(f"{runs} runs")
    assert runs >= 120


def test_a_binder_that_takes_an_offer_that_was_replaced_under_its_hands_acts_for_its_own_orders_alone() -> None:
    def check(world: World, gates: dict[str, Gate]) -> None:
        assert set(world.changes) <= {OLD}
        tokens = read_tokens(TokenFiles(world.host))
        if not gates["publisher"].killed:
            entries = {token.entry for token in (*tokens.offered.values(), *tokens.taken.values())}
            assert NEW in entries, "the newer offer is not lost"
        again(world, lambda gate: world.renew(gate))
        again(world, lambda gate: world.bind(gate, NEW))
        assert NEW in world.changes

    runs = tried(
        lambda world: world.publisher.offer(CARD, BOOT, OLD),
        lambda world: {
            "binder": lambda gate: world.bind(gate, OLD),
            "publisher": lambda gate: PublisherHalf(world.host, StepFiles(world.host, gate)).offer(CARD, BOOT, NEW),
        },
        check,
    )
    print(f"{runs} runs")
    assert runs >= 250


def test_nothing_is_changed_once_a_hand_over_is_finished() -> None:
    def prepare(world: World) -> None:
        world.publisher.offer(CARD, BOOT, OLD)
        assert world.binder.take(CARD, BOOT, {OLD}) is None
        world.publisher.offer(CARD, BOOT, OLD)

    def check(world: World, gates: dict[str, Gate]) -> None:
        if world.offered_to_pods:
            assert world.publisher.prepare_refused(CARD) is None
        world.offered_to_pods = False
        again(world, world.finish)
        assert world.publisher.prepare_refused(CARD) is None
        before = list(world.changes)
        again(world, lambda gate: world.bind(gate, OLD))
        assert world.changes == before

    runs = tried(
        prepare,
        lambda world: {"binder": lambda gate: world.bind(gate, OLD), "publisher": world.finish},
        check,
    )
    print(f"{runs} runs")
    assert runs >= 100


def test_cleaning_what_another_boot_left_loses_no_offer_of_this_one() -> None:
    def clean(world: World, gate: Gate) -> None:
        try:
            with Locks(world.host, LOCKS, owner="binder"):
                BinderHalf(StepFiles(world.host, gate)).clean(CARD, BOOT)
        except LockedError:
            pass

    def prepare(world: World) -> None:
        world.publisher.offer(CARD, BEFORE, OLD)
        assert world.binder.take(CARD, BEFORE, {OLD}) is None
        world.publisher.offer(CARD, BEFORE, OLD)

    def offer(world: World, gate: Gate) -> None:
        PublisherHalf(world.host, StepFiles(world.host, gate)).offer(CARD, BOOT, NEW)

    def check(world: World, gates: dict[str, Gate]) -> None:
        if not gates["publisher"].killed:
            again(world, lambda gate: world.bind(gate, NEW))
            assert world.changes == [NEW, NEW]
        assert OLD not in world.changes

    runs = tried(
        prepare,
        lambda world: {"binder": lambda gate: clean(world, gate), "publisher": lambda gate: offer(world, gate)},
        check,
    )
    print(f"{runs} runs")
    assert runs >= 190
