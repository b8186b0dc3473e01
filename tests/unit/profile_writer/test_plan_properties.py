"""Any card, any orders, any users and any strangers: what the plan never does, and where it always gets."""

from collections import Counter
from typing import Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crds.models.node_state import DeviceState, Intent
from crds.models.vgpu_state import VGPUOrder
from profile_writer.card import ClearType, Step
from tests.builders.paper_card import FRAME_BUFFER, SIZES, PaperCard, order

EXAMPLES: Final = 3000
FUNCTIONS: Final = 8

PROFILES: Final = st.sampled_from(sorted(SIZES)) | st.sampled_from(["L40S-6Q", "L40S-12Q"])
NUMBERS: Final = st.integers(1, FUNCTIONS)
# What is done to a card before: types are given and taken in any order, so that it is full of holes.
DEEDS: Final = st.one_of(
    st.lists(st.tuples(NUMBERS, st.none() | PROFILES), max_size=14),
    st.tuples(st.sampled_from(["L40S-6Q", "L40S-8Q", "L40S-12Q"]), st.integers(2, FUNCTIONS), st.sets(NUMBERS)).map(
        lambda filled: [
            *((number, filled[0]) for number in range(1, filled[1] + 1)),
            *((number, None) for number in sorted(filled[2])),
        ]
    ),
)
LAYOUTS: Final = st.lists(st.tuples(st.sampled_from(["4Q", "6Q", "8Q", "12Q", "24Q"]), st.integers(1, 4)), max_size=3)


def happen(card: PaperCard, deeds: list[tuple[int, str | None]]) -> None:
    """What strangers do, as far as the driver lets them."""
    for number, profile in deeds:
        if number > card.number or number in card.users:
            continue
        if number in card.types:
            card.take(number)
        if profile is not None and card.place(profile) is not None:
            card.put(number, profile)


def wanted_by(orders: VGPUOrder) -> Counter[str]:
    wanted: Counter[str] = Counter()
    for entry in orders.layout:
        wanted[entry.profile] += entry.count
    return wanted


def can_be_reached(card: PaperCard, orders: VGPUOrder) -> bool:
    """By clearing every function that is nobody's, choosing the mode if it can be chosen, and giving the big first."""
    wanted = wanted_by(orders)
    sizes = {SIZES[profile] for profile in wanted}
    if sum(SIZES[profile] for profile in wanted.elements()) > FRAME_BUFFER:
        return False
    held = {number: profile for number, profile in card.types.items() if number in card.users}
    modes = [card.mixed] if held else [len(sizes) > 1]
    if not held and len(sizes) == 1:
        modes = [False, True]
    return any(_laid_out(card, held, wanted, mixed) for mixed in modes)


def _laid_out(card: PaperCard, held: dict[int, str], wanted: Counter[str], mixed: bool) -> bool:
    other = PaperCard(total=FUNCTIONS, number=FUNCTIONS, mixed=mixed)
    other.types, other.places = dict(held), {number: card.places[number] for number in held}
    free = [number for number in range(1, FUNCTIONS + 1) if number not in card.users]
    missing = sorted((wanted - Counter(held.values())).elements(), key=lambda profile: -SIZES[profile])
    if len(missing) > len(free):
        return False
    for number, profile in zip(free, missing, strict=False):
        if other.place(profile) is None:
            return False
        other.put(number, profile)
    return True


def is_there(card: PaperCard, orders: VGPUOrder) -> bool:
    return not wanted_by(orders) - Counter(card.types.values())


def kept_what_is_right(before: dict[int, str], steps: list[Step], orders: VGPUOrder) -> bool:
    """Whether the plan cleared a type that is wanted only where it says that it gives it anew."""
    cleared = Counter(step.profile for step in steps if isinstance(step, ClearType) and step.rearranges is None)
    had = Counter(before.values())
    given = Counter(step.profile for step in steps if not isinstance(step, ClearType) and hasattr(step, "profile"))
    return all(
        had[profile] + given[profile] - count >= min(had[profile], number)
        for profile, number in wanted_by(orders).items()
        if (count := cleared[profile]) > 0
    )


def test_any_card_gets_as_far_as_it_can_and_no_further() -> None:
    ran = reached = wrote = anew = 0

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.booleans(), DEEDS, st.sets(NUMBERS, max_size=4), LAYOUTS, st.booleans())
    def check(
        mixed: bool, deeds: list[tuple[int, str | None]], users: set[int], layout: list[tuple[str, int]], clear: bool
    ) -> None:
        nonlocal ran, reached, wrote, anew
        ran += 1
        card = PaperCard(total=FUNCTIONS, number=FUNCTIONS, mixed=mixed)
        happen(card, deeds)
        card.users = users
        orders = order(*layout, mixed=True, clear=clear)
        before, expected = dict(card.types), can_be_reached(card, orders)
        fits = sum(count for _, count in layout) <= FUNCTIONS
        verdict = card.obey(orders)
        wrote += bool(card.steps)
        anew += any(isinstance(step, ClearType) and step.rearranges is not None for step in card.steps)
        assert all(card.types.get(number) == before.get(number) for number in users)
        assert kept_what_is_right(before, card.steps, orders)
        if layout:
            assert is_there(card, orders) == (fits and expected), (card.steps, verdict)
            surplus = sum((Counter(card.types.values()) - wanted_by(orders)).values())
            reached += is_there(card, orders)
            if is_there(card, orders) and (not clear or not surplus):
                assert verdict.state is DeviceState.READY
            assert verdict.state is not DeviceState.READY or is_there(card, orders)
            assert verdict.state is not DeviceState.PENDING
        else:
            assert card.steps == []
        was = dict(card.types)
        card.obey(orders)
        assert card.steps == [], "a second pass writes nothing"
        assert card.types == was

    check()
    print(f"{ran} examples: {reached} layouts reached, {wrote} with writes, {anew} laid out anew")
    assert ran >= 2000
    assert reached >= ran / 10 and wrote >= ran / 4 and anew >= 20


def test_users_and_strangers_between_any_two_steps_lose_nothing_and_keep_nobody_busy() -> None:
    ran = busy = 0

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.booleans(),
        DEEDS,
        LAYOUTS,
        st.booleans(),
        st.lists(st.tuples(st.sets(NUMBERS, max_size=3), st.none() | DEEDS.map(lambda deeds: deeds[:2])), max_size=12),
        st.sampled_from([Intent.APPLY, Intent.APPLY, Intent.RELEASE, Intent.HOLD]),
    )
    def check(
        mixed: bool,
        deeds: list[tuple[int, str | None]],
        layout: list[tuple[str, int]],
        clear: bool,
        events: list[tuple[set[int], list[tuple[int, str | None]] | None]],
        last: Intent,
    ) -> None:
        nonlocal ran, busy
        ran += 1
        card = PaperCard(total=FUNCTIONS, number=FUNCTIONS, mixed=mixed)
        happen(card, deeds)
        left = list(events)

        def between(card: PaperCard) -> None:
            # `PaperCard.do` asserts that no function in use is changed.
            if left:
                users, foreign = left.pop(0)
                card.users = {number for number in users if number <= card.number}
                happen(card, foreign or [])

        orders = order(*layout, mixed=True, clear=clear)
        for intent in (Intent.APPLY, last):
            between(card)
            card.obey(orders, intent, between=between)
            busy += len(card.steps) > 3
            if intent is Intent.HOLD:
                assert card.steps == []
        left.clear()
        card.users = set()
        card.obey(orders, last)
        card.obey(orders, last)
        assert card.steps == [], "nothing happens, and it still writes"

    check()
    print(f"{ran} examples, {busy} passes with more than three steps")
    assert ran >= 2000 and busy >= 100
