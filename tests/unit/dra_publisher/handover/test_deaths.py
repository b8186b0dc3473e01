"""The publisher dies before each thing that it does: the next one goes on, and nothing is open that must not be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from crds.device_names import NamedKind
from dra_publisher.handover.hand_over import is_withheld
from node_host.evidence.publication import read_published
from node_host.handover.publisher_half import PublisherHalf
from tests.builders.binder import NPU, TWIN, order
from tests.builders.fault_scenes import SRIOV_CARD, functions_of
from tests.builders.hand_over_machines import LAYOUTS, Entry, Machine
from tests.builders.hand_over_world import World

CONTAINER = (order(mode="Container"), order(TWIN, mode="Container"))
VMS = (order(), order(TWIN))


@dataclass
class Watched(World):
    """A quiet world in which each step of the publisher is looked at."""

    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.quiet = True

    def step(self, who: str, what: str, *, strangers: bool = False) -> None:
        if who == "publisher":
            self.steps.append(what)
            self.check()
        super().step(who, what, strangers=strangers)

    def check(self) -> None:
        """What is in a slice is noted; what new users may have has no token, and is as it is published."""
        host = self.kernel.host()
        listed = read_published(host, self.kernel.boot_id).addresses
        half = PublisherHalf(host)
        for address, offer in self.slices.items():
            assert address in listed, f"{address} is in a slice and not noted"
            if not is_withheld(offer):
                assert half.prepare_refused(address) is None, f"{address} is open to new users with a token"
                assert self.is_placed(address, offer.kind), f"{address} is not what it is published as"

    def is_placed(self, address: str, kind: NamedKind) -> bool:
        device = self.kernel._machine.devices.get(address)
        return device is not None and (device.driver == "vfio-pci") is (kind is NamedKind.VFIO)

    def rounds(self, number: int) -> None:
        for _ in range(number):
            self.bench.clock.advance(400)
            self.binder_pass()
            self.look()
            self.refuse_faults()

    def offers(self) -> dict[str, tuple[str, bool]]:
        return {one: (str(offer.kind), is_withheld(offer)) for one, offer in sorted(self.slices.items())}


@pytest.fixture(scope="module")
def machines() -> Iterator[dict[str, Machine]]:
    made = {layout.name: Machine(layout) for layout in LAYOUTS}
    yield made
    for machine in made.values():
        machine.close()


def nothing(_: Watched) -> None:
    """Orders alone."""


def handed_over(world: Watched) -> None:
    """The device is changed; its token is still there."""
    world.look()
    world.binder_pass()


def offered_only(world: Watched) -> None:
    """An offer lies there that nobody has taken, and the orders are taken back."""
    world.look()
    world.order(*CONTAINER)
    world.binder_pass()


def rebooted(world: Watched) -> None:
    """The host was booted meanwhile: slices are gone, claims are not."""
    world._reboot()
    world.binder_pass()


@dataclass(frozen=True)
class Scene:
    """From orders that were reached to others; the publisher dies in the look after ``until``."""

    machine: str
    first: tuple[Entry, ...]
    then: tuple[Entry, ...]
    until: Callable[[Watched], None] = nothing
    least: int = 1


def _released(*entries: Entry) -> tuple[Entry, ...]:
    return tuple({**entry, "intent": "Release"} for entry in entries)


SCENES = {
    "a device is published": Scene("apart", (), CONTAINER, least=4),
    "a device is withheld and handed over": Scene("apart", CONTAINER, VMS, least=3),
    "a hand-over is finished": Scene("apart", CONTAINER, VMS, handed_over, least=4),
    "a hand-over is taken back": Scene("apart", CONTAINER, VMS, offered_only, least=2),
    "devices are given back": Scene("apart", VMS, _released(*VMS), handed_over, least=4),
    "a group is handed over": Scene("one group", CONTAINER, VMS, least=3),
    "a group is published": Scene("one group", CONTAINER, VMS, handed_over, least=4),
    "a card's functions are handed over": Scene("functions", (functions_of(1),), (functions_of(2),), least=2),
    "a card's functions are published": Scene(
        "functions", (functions_of(1),), (functions_of(2),), handed_over, least=4
    ),
    "the card goes back to containers": Scene(
        "functions", (functions_of(2),), (functions_of(None, mode="Container"),), handed_over, least=3
    ),
    "a rebooted host is as before": Scene("apart", VMS, VMS, rebooted, least=3),
    "a rebooted host has other orders": Scene("apart", CONTAINER, VMS, rebooted, least=2),
}


def _begun(machines: dict[str, Machine], scene: Scene) -> Watched:
    world = Watched(machines[scene.machine], Random(0))
    if scene.first:
        world.order(*scene.first)
        world.rounds(2)
    world.order(*scene.then)
    world.binder_pass()
    scene.until(world)
    world.steps.clear()
    return world


def _arrived(world: Watched) -> dict[str, tuple[str, bool]]:
    world.rounds(6)
    world.check()
    before = len(world.steps)
    world.look()
    assert world.steps[before:] == [], "there is nothing left to do"
    return world.offers()


@pytest.mark.parametrize("name", SCENES)
def test_another_publisher_goes_on_from_any_death(name: str, machines: dict[str, Machine]) -> None:
    scene = SCENES[name]
    world = _begun(machines, scene)
    world.look()
    steps = len(world.steps)
    assert steps >= scene.least, world.steps
    wanted = _arrived(world)
    world.close()
    for number in range(steps):
        world = _begun(machines, scene)
        world.kill_publisher(after=number)
        try:
            assert _arrived(world) == wanted
        except AssertionError as error:
            error.add_note(f"died before step {number}: {world.steps}")
            raise
        finally:
            world.close()
    print(f"{steps} deaths; in the end {wanted}")


def test_the_ends_are_what_was_ordered(machines: dict[str, Machine]) -> None:
    ends = {}
    for name in ("a hand-over is finished", "a hand-over is taken back", "devices are given back"):
        world = _begun(machines, SCENES[name])
        ends[name] = _arrived(world)
        world.close()
    assert ends == {
        "a hand-over is finished": {NPU: ("vfio", False), TWIN: ("vfio", False)},
        "a hand-over is taken back": {NPU: ("npu", False), TWIN: ("npu", False)},
        "devices are given back": {},
    }
    world = _begun(machines, SCENES["a card's functions are published"])
    found = _arrived(world)
    world.close()
    assert len(found) == 2
    assert SRIOV_CARD not in found
