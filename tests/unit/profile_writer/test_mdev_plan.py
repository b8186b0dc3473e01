"""Cards whose driver makes mediated devices: the same orders, by UUID."""

from dataclasses import dataclass, field, replace
from typing import Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crds.models.node_state import DeviceState, Intent
from crds.models.profile_map import Framework
from crds.models.profiling import ProfileReason as Reason
from crds.models.vgpu_state import VGPUOrder
from profile_writer.card import (
    CardFormer,
    CardSeen,
    CreateMdev,
    EnableFunctions,
    MdevParentSeen,
    MdevSeen,
    Obstacle,
    RemoveMdev,
    Step,
    Switch,
    Verdict,
)
from profile_writer.mdev_plan import mdev_uuid
from profile_writer.plan import next_step
from tests.builders.paper_card import CARD, FRAME_BUFFER, SIZES, function, order

EXAMPLES: Final = 2500
IDENTITY: Final = "serial 1"


@dataclass
class MdevCard:
    """A card that is the parent of its devices, all of one size. `refused`: UUIDs that the driver does not make."""

    mdevs: dict[str, str] = field(default_factory=dict)
    users: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unnamed: set[str] = field(default_factory=set)
    mig: Switch = Switch.OFF
    given: dict[str, str] = field(default_factory=dict)
    former: CardFormer | None = None
    steps: list[Step] = field(default_factory=list)
    failed: dict[str, Obstacle] = field(default_factory=dict)

    def available(self, profile: str) -> int:
        size = SIZES[profile]
        if any(SIZES[other] != size for other in self.mdevs.values()):
            return 0
        return FRAME_BUFFER // size - len(self.mdevs)

    def seen(self) -> CardSeen:
        available = {profile: self.available(profile) for profile in SIZES}
        directories = {profile: f"nvidia-{number}" for number, profile in enumerate(SIZES)}
        mdevs = tuple(
            MdevSeen(
                one,
                CARD,
                None if one in self.unnamed else profile,
                Obstacle(Reason.IN_USE, "in use by qemu") if one in self.users else None,
                ("qemu",) if one in self.users else (),
            )
            for one, profile in self.mdevs.items()
        )
        return CardSeen(
            address=CARD,
            driver="nvidia",
            mig=self.mig,
            sizes=SIZES,
            frame_buffer=FRAME_BUFFER,
            former=self.former,
            given=dict(self.given),
            failed=dict(self.failed),
            identity=IDENTITY,
            parents=(MdevParentSeen(CARD, directories, available),),
            mdevs=mdevs,
        )

    def obey(self, orders: VGPUOrder, intent: Intent = Intent.APPLY) -> Verdict:
        self.steps, self.failed = [], {}
        for _ in range(100):
            answer = next_step(orders, intent, self.seen())
            if isinstance(answer, Verdict):
                return answer
            self.steps.append(answer)
            self.former = self.former or CardFormer(0)
            match answer:
                case CreateMdev(_, _, uuid, profile):
                    assert uuid not in self.mdevs and self.available(profile) > 0
                    if uuid in self.refused:
                        self.failed[uuid] = Obstacle(Reason.TYPE_FAILED, "EIO")
                    else:
                        self.mdevs[uuid] = self.given[uuid] = profile
                case RemoveMdev(_, uuid):
                    assert uuid not in self.users, f"{uuid} is in use"
                    del self.mdevs[uuid]
                    self.given.pop(uuid, None)
                case _:
                    raise AssertionError(f"{answer} on a card without functions")
        raise AssertionError(f"no end: {self.steps[-6:]}")


def own(profile: str, number: int) -> str:
    return mdev_uuid(IDENTITY, profile, number)


def test_the_same_map_gives_the_same_uuids_after_a_reboot() -> None:
    card = MdevCard()
    assert card.obey(order(("24Q", 2))).reason is Reason.TYPED
    before = dict(card.mdevs)
    assert before == {own("L40S-24Q", 0): "L40S-24Q", own("L40S-24Q", 1): "L40S-24Q"}
    card.obey(order(("24Q", 2)))
    assert card.steps == []
    card.mdevs.clear()
    card.obey(order(("24Q", 2)))
    assert card.mdevs == before
    assert mdev_uuid("serial 2", "L40S-24Q", 0) not in before


def test_a_device_of_others_is_adopted_and_a_wrong_one_goes_when_it_is_free_and_in_the_way() -> None:
    card = MdevCard(mdevs={"theirs": "L40S-24Q"})
    verdict = card.obey(order(("24Q", 2)))
    assert verdict.state is DeviceState.READY
    assert card.mdevs == {"theirs": "L40S-24Q", own("L40S-24Q", 0): "L40S-24Q"}
    card.users = {"theirs"}
    assert card.obey(order(("12Q", 4), clear=True)).state is DeviceState.BLOCKED
    assert "theirs" in card.mdevs
    card.users = set()
    assert card.obey(order(("12Q", 4))).state is DeviceState.READY
    assert set(card.mdevs.values()) == {"L40S-12Q"}


def test_a_device_that_cannot_be_made_costs_no_other() -> None:
    card = MdevCard(refused={own("L40S-12Q", 1)})
    verdict = card.obey(order(("12Q", 3)))
    assert (verdict.state, verdict.reason) == (DeviceState.FAILED, Reason.TYPE_FAILED)
    assert set(card.mdevs) == {own("L40S-12Q", 0), own("L40S-12Q", 2)}
    assert {one.uuid: one.state for one in verdict.vgpus}[own("L40S-12Q", 1)] is DeviceState.FAILED


def test_what_the_driver_does_not_know_or_the_map_forbids_changes_nothing() -> None:
    for orders, reason in (
        (order(("16Q", 1), clear=True), Reason.PROFILE_UNKNOWN),
        (order(("24Q", 1), ("12Q", 1), clear=True), Reason.MIXED_SIZES_FORBIDDEN),
        (order(("24Q", 3), clear=True), Reason.NO_ROOM),
    ):
        card = MdevCard(mdevs={"theirs": "L40S-8Q"})
        verdict = card.obey(orders)
        assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, reason)
        assert card.steps == []


def test_mig_mode_and_a_type_without_a_name_change_nothing() -> None:
    card = MdevCard(mig=Switch.ON)
    assert card.obey(order(("24Q", 2))).reason is Reason.MIG_ENABLED
    card = MdevCard(mdevs={"theirs": "L40S-8Q"}, unnamed={"theirs"})
    assert card.obey(order(("24Q", 2), clear=True)).reason is Reason.TYPE_UNKNOWN
    assert card.steps == []


def test_the_ordered_framework_decides_and_the_other_is_not_written() -> None:
    seen = MdevCard().seen()
    for parent in (seen, replace(seen, total=16, number=0), replace(seen, total=16, number=1)):
        verdict = next_step(order(("24Q", 2), framework=Framework.VENDOR_VFIO), Intent.APPLY, parent)
        assert isinstance(verdict, Verdict) and verdict.reason is Reason.FRAMEWORK_MISSING
    bare = replace(seen, parents=(), total=16, number=0)
    mdev = order(("24Q", 1), framework=Framework.MDEV)
    # Cards of one generation make mediated devices on virtual functions only.
    assert next_step(mdev, Intent.APPLY, bare) == EnableFunctions(16)
    for without in (replace(bare, number=16), replace(bare, total=None)):
        verdict = next_step(mdev, Intent.APPLY, without)
        assert isinstance(verdict, Verdict) and verdict.reason is Reason.FRAMEWORK_MISSING


def test_functions_that_make_one_device_each_are_taken_by_address() -> None:
    parents = tuple(
        MdevParentSeen(function(number), {"L40S-24Q": "nvidia-7"}, {"L40S-24Q": int(number != 2)}) for number in (3, 2)
    )
    seen = replace(MdevCard().seen(), parents=parents)
    step = next_step(order(("24Q", 1)), Intent.APPLY, seen)
    assert step == CreateMdev(function(3), "nvidia-7", own("L40S-24Q", 0), "L40S-24Q")


def test_a_released_card_keeps_the_devices_of_others_and_those_in_use() -> None:
    card = MdevCard(mdevs={"theirs": "L40S-12Q"})
    card.obey(order(("12Q", 3)))
    card.users = {own("L40S-12Q", 0)}
    assert card.obey(order(), Intent.RELEASE).reason is Reason.IN_USE
    card.users = set()
    assert card.obey(order(), Intent.RELEASE).state is DeviceState.RELEASED
    assert card.mdevs == {"theirs": "L40S-12Q"}


def test_any_card_of_mediated_devices_gets_as_far_as_it_can_and_no_device_in_use_goes() -> None:
    ran = reached = 0
    profiles = st.sampled_from(["L40S-6Q", "L40S-8Q", "L40S-12Q", "L40S-24Q"])

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(profiles, st.integers(0, 4), st.sets(st.integers(0, 3)), profiles, st.integers(1, 9), st.booleans())
    def check(there: str, number: int, used: set[int], wanted: str, count: int, clear: bool) -> None:
        nonlocal ran, reached
        ran += 1
        number = min(number, FRAME_BUFFER // SIZES[there])
        card = MdevCard(mdevs={f"their {n}": there for n in range(number)})
        card.users = {f"their {n}" for n in used if n < number}
        verdict = card.obey(order((wanted.removeprefix("L40S-"), count), clear=clear))
        assert card.users <= card.mdevs.keys()
        fits = SIZES[wanted] * count <= FRAME_BUFFER
        expected = fits and (there == wanted or not card.users)
        # A device in use that is too much keeps a card from being as ordered only where it is to go.
        too_much = clear and len(card.users) > count
        assert (verdict.state is DeviceState.READY) == (expected and not too_much), verdict
        reached += expected
        if there == wanted:
            kept = [one for one in card.mdevs if one.startswith("their")]
            assert len(kept) >= min(number, count)
        card.obey(order((wanted.removeprefix("L40S-"), count), clear=clear))
        assert card.steps == []

    check()
    print(f"{ran} examples, {reached} layouts reached")
    assert ran >= 2000 and reached >= 200
