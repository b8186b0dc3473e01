"""Which faults meet which scenarios: a sample that touches everything once, and the whole matrix."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.builders.fault_proxy import Fault, Kind, Verb, draw
from tests.builders.fault_proxy.faults import KILLS
from tests.cluster.faults.scenarios import SCENARIOS

SEED = "npufleet"
SLOW = (Kind.STALL, Kind.DEAD)
"""They take as long as it takes to notice them: more than a minute each."""
QUICK = tuple(kind for kind in Kind if kind not in SLOW)
KILLED_AT_EVERY_WRITE = "create"
MOST_WRITES = 130


@dataclass(frozen=True, slots=True)
class Case:
    """One run to make. `seed` and the names alone make it again."""

    scenario: str
    kinds: tuple[Kind, ...]
    seed: str
    faults: tuple[Fault, ...]

    @property
    def id(self) -> str:
        return f"{self.scenario}-{'+'.join(self.kinds)}-{self.seed}"


def case(scenario: str, kinds: Sequence[Kind], seed: str) -> Case:
    return Case(scenario, tuple(kinds), seed, tuple(draw(kind, f"{scenario}/{seed}") for kind in kinds))


def sample(seed: str = SEED) -> list[Case]:
    """Every scenario once with two quick kinds of faults, so that each kind comes up; the slow kinds in one run."""
    rng = random.Random(f"sample/{seed}")
    kinds: list[Kind] = []
    while len(kinds) < 2 * len(SCENARIOS):
        deck = list(QUICK)
        rng.shuffle(deck)
        kinds += deck
    cases = []
    for number, scenario in enumerate(SCENARIOS):
        dealt = list(dict.fromkeys(kinds[2 * number : 2 * number + 2]))
        cases.append(case(scenario.name, dealt, seed))
    return [_slow(rng.choice(("create", "change", "delete")), seed), *cases]


def _slow(scenario: str, seed: str) -> Case:
    """The slow kinds side by side, each on a kind of objects of its own."""
    for number in range(100):
        found = case(scenario, SLOW, f"{seed}-slow-{number}")
        if len({fault.plural for fault in found.faults}) == len(SLOW):
            return found
    raise AssertionError("no seed draws two kinds of objects")


def whole(seeds: int) -> Iterator[Case]:
    """Every scenario with every kind, for each seed; with storms of five; and killed at every write."""
    for number in range(seeds):
        seed = f"{SEED}-{number}"
        rng = random.Random(f"storm/{seed}")
        for scenario in SCENARIOS:
            for kind in QUICK:
                yield case(scenario.name, [kind], seed)
            yield case(scenario.name, rng.sample(QUICK, 5), f"{seed}-storm")
        for kind in SLOW:
            for scenario in SCENARIOS[:4]:
                yield case(scenario.name, [kind], seed)
    for write in range(1, MOST_WRITES + 1):
        for kind in KILLS[1:]:
            fault = Fault(kind, verb=Verb.WRITE, after=write)
            yield Case(KILLED_AT_EVERY_WRITE, (kind,), f"write-{write}", (fault,))


def chosen() -> list[Case]:
    """What this run of the tests makes: the sample, and with $FAULTS=all the whole matrix, $FAULTS_SEEDS times.

    $FAULTS_ONLY picks those whose id contains one of its words.
    """
    cases = sample()
    if os.environ.get("FAULTS") == "all":
        cases += whole(int(os.environ.get("FAULTS_SEEDS", "1")))
    only = os.environ.get("FAULTS_ONLY", "").split()
    return [each for each in cases if not only or any(word in each.id for word in only)]
