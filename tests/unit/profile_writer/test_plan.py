"""What is done next to a card: one rule at a time, on paper."""

from dataclasses import replace

import pytest

from crds.models.node_state import DeviceState, Intent
from crds.models.profiling import ProfileReason as Reason
from crds.models.vgpu_state import VGPUOrder
from profile_writer.card import (
    FOR_MODE,
    CardFormer,
    ClearType,
    DisableFunctions,
    EnableFunctions,
    FindDriver,
    MixSizes,
    Obstacle,
    SetType,
    Step,
    Switch,
    Verdict,
)
from profile_writer.plan import next_step
from tests.builders.paper_card import CARD, IDS, PaperCard, function, named, order


def is_set(step: Step) -> bool:
    return isinstance(step, SetType)


def states(verdict: Verdict) -> dict[str, tuple[DeviceState, Reason]]:
    return {one.address: (one.state, one.reason) for one in verdict.vgpus}


def test_at_boot_functions_come_first_then_the_mode_then_types_the_big_ones_before_the_small() -> None:
    card = PaperCard(number=0)
    verdict = card.obey(order(("12Q", 2), ("24Q", 1), mixed=True))
    assert verdict.state is DeviceState.READY and verdict.reason is Reason.TYPED
    assert card.steps == [
        EnableFunctions(16),
        MixSizes(True),
        SetType(function(1), IDS["L40S-24Q"], "L40S-24Q"),
        SetType(function(2), IDS["L40S-12Q"], "L40S-12Q"),
        SetType(function(3), IDS["L40S-12Q"], "L40S-12Q"),
    ]
    card.obey(order(("12Q", 2), ("24Q", 1), mixed=True))
    assert card.steps == []


def test_gpu_operator_2594_a_type_is_found_by_name_in_the_list_of_the_function_itself() -> None:
    card = PaperCard()
    assert card.obey(order(("24Q", 2))).state is DeviceState.READY
    assert card.steps == [SetType(function(n), IDS["L40S-24Q"], "L40S-24Q") for n in (1, 2)]


def test_cozystack_2608_after_a_reboot_the_same_functions_get_the_same_types() -> None:
    card = PaperCard()
    orders = order(("24Q", 1), ("12Q", 2), mixed=True)
    card.obey(orders)
    card.take(1)
    card.put(9, "L40S-24Q")
    card.given = dict(card.types)
    before = dict(card.types)
    card.reboot()
    assert card.obey(orders).state is DeviceState.READY
    assert card.types == before
    assert card.steps[:2] == [EnableFunctions(16), MixSizes(True)]


def test_cozystack_2608_functions_of_a_card_in_use_are_not_enabled() -> None:
    card = PaperCard(number=0, card_users=("Xorg (pid 3)",))
    verdict = card.obey(order(("24Q", 2)))
    assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.IN_USE)
    assert "Xorg (pid 3)" in verdict.message
    assert card.steps == []


def test_cozystack_2608_too_few_functions_are_not_made_anew_beside_a_live_vgpu() -> None:
    for card in (PaperCard(number=1, types={1: "L40S-24Q"}), PaperCard(number=1, users={1})):
        verdict = card.obey(order(("24Q", 2)))
        assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.TOO_FEW_FUNCTIONS)
        assert card.steps == []


def test_too_few_idle_functions_are_made_anew() -> None:
    card = PaperCard(number=1)
    assert card.obey(order(("24Q", 2))).state is DeviceState.READY
    assert card.steps[:2] == [DisableFunctions(), EnableFunctions(16)]


def test_fewer_functions_than_the_card_could_have_are_enough_when_the_layout_fits_on_them() -> None:
    card = PaperCard(number=2)
    assert card.obey(order(("24Q", 2))).state is DeviceState.READY
    assert all(is_set(step) for step in card.steps)


def test_cubecos_1316_a_function_that_fails_costs_no_other_its_type() -> None:
    card = PaperCard(types={1: "L40S-12Q"}, refused={2, 3})
    verdict = card.obey(order(("12Q", 4)))
    assert card.types == dict.fromkeys((1, 4, 5, 6), "L40S-12Q")
    assert verdict.state is DeviceState.READY

    card = PaperCard(number=4, total=4, types={1: "L40S-12Q"}, refused={2})
    verdict = card.obey(order(("12Q", 4)))
    assert card.types == dict.fromkeys((1, 3, 4), "L40S-12Q")
    assert (verdict.state, verdict.reason) == (DeviceState.FAILED, Reason.TYPE_FAILED)
    assert states(verdict)[function(2)] == (DeviceState.FAILED, Reason.TYPE_FAILED)
    assert states(verdict)[function(1)] == (DeviceState.READY, Reason.ADOPTED)
    assert states(verdict)[function(3)] == (DeviceState.READY, Reason.TYPED)


def test_cubecos_1316_mixed_sizes_that_cannot_be_set_do_not_take_types_away_again_and_again() -> None:
    card = PaperCard(types={1: "L40S-12Q"}, mode_works=False)
    orders = order(("24Q", 1), ("12Q", 1), mixed=True)
    for _ in range(3):
        verdict = card.obey(orders)
        assert (verdict.state, verdict.reason) == (DeviceState.FAILED, Reason.MIXED_SIZES_FAILED)
        assert len(card.types) == 1
    assert card.steps == []


def test_harvester_11133_mig_mode_is_named_and_nothing_is_written_until_it_is_off() -> None:
    for number in (0, 16):
        card = PaperCard(number=number, mig=Switch.ON)
        verdict = card.obey(order(("24Q", 2)))
        assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.MIG_ENABLED)
        assert card.steps == []
        card.mig = Switch.OFF
        assert card.obey(order(("24Q", 2))).state is DeviceState.READY


def test_harvester_11133_lists_that_are_empty_for_no_known_reason_are_pending() -> None:
    card = PaperCard(known=frozenset(), mig=Switch.UNKNOWN)
    verdict = card.obey(order(("24Q", 2)))
    assert (verdict.state, verdict.reason) == (DeviceState.PENDING, Reason.LIST_EMPTY)
    assert card.steps == []


def test_a_profile_that_the_driver_does_not_know_keeps_everything_as_it_is() -> None:
    card = PaperCard(types={1: "L40S-8Q", 2: "L40S-8Q"}, known=frozenset({"L40S-8Q", "L40S-24Q"}))
    verdict = card.obey(order(("24Q", 1), ("16Q", 1), mixed=True, clear=True))
    assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.PROFILE_UNKNOWN)
    assert "L40S-16Q" in verdict.message and "L40S-24Q, L40S-8Q" in verdict.message
    assert card.steps == []


def test_mixed_sizes_that_the_map_forbids_are_refused_before_anything_is_written() -> None:
    card = PaperCard(types={1: "L40S-8Q"})
    verdict = card.obey(order(("24Q", 1), ("12Q", 1), clear=True))
    assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.MIXED_SIZES_FORBIDDEN)
    assert card.steps == []


@pytest.mark.parametrize("layout", [(("48Q", 2),), (("24Q", 3),), (("24Q", 1), ("12Q", 3))])
def test_more_frame_buffer_than_the_card_has_is_refused_before_anything_is_written(
    layout: tuple[tuple[str, int], ...],
) -> None:
    card = PaperCard(types={1: "L40S-8Q"})
    verdict = card.obey(order(*layout, mixed=True, clear=True))
    assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.NO_ROOM)
    assert card.steps == []


def test_more_vgpus_than_functions_are_refused_before_anything_is_written() -> None:
    card = PaperCard(number=0)
    verdict = card.obey(order(("1Q", 17)))
    assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.TOO_FEW_FUNCTIONS)
    assert card.steps == []


def test_a_mixed_layout_needs_the_vendors_program() -> None:
    card = PaperCard(has_smi=False)
    verdict = card.obey(order(("24Q", 1), ("12Q", 1), mixed=True))
    assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.TOOL_MISSING)
    assert card.steps == []


def test_a_function_in_use_is_kept_before_a_free_one_and_the_free_one_is_beyond_the_layout() -> None:
    card = PaperCard(types={1: "L40S-24Q", 2: "L40S-24Q"}, users={2})
    verdict = card.obey(order(("24Q", 1), clear=True))
    assert card.types == {2: "L40S-24Q"}
    assert verdict.state is DeviceState.READY
    assert verdict.vgpus[0].users == ("qemu (pid 7)",)


def test_a_wrong_type_is_repaired_when_free_and_its_room_is_needed() -> None:
    card = PaperCard(types={1: "L40S-12Q"})
    verdict = card.obey(order(("24Q", 2)))
    assert card.steps[0] == ClearType(function(1), "L40S-12Q")
    assert card.profiles() == named(["24Q", "24Q"])
    assert verdict.state is DeviceState.READY


def test_a_wrong_type_in_use_stays_and_is_named() -> None:
    card = PaperCard(types={1: "L40S-12Q"}, users={1})
    verdict = card.obey(order(("24Q", 2), clear=True))
    assert card.steps == []
    assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.IN_USE)
    assert "L40S-12Q" in verdict.message and "qemu (pid 7)" in verdict.message
    card.users.clear()
    assert card.obey(order(("24Q", 2), clear=True)).state is DeviceState.READY


def test_a_free_wrong_type_whose_room_would_not_help_stays_when_left_types_may() -> None:
    card = PaperCard(types={1: "L40S-12Q", 2: "L40S-12Q"}, users={1})
    card.obey(order(("24Q", 2)))
    assert card.steps == []
    card.obey(order(("24Q", 2), clear=True))
    assert card.steps == [ClearType(function(2), "L40S-12Q")]


def test_a_small_free_vgpu_in_the_way_of_a_big_one_is_laid_out_again_once() -> None:
    card = PaperCard(mixed=True)
    for number in (1, 2, 3):
        card.put(number, "L40S-12Q")
    card.take(2)
    # 12Q lie at 0 and at 24 GB: neither half takes a 24Q.
    verdict = card.obey(order(("24Q", 1), ("12Q", 2), mixed=True))
    assert verdict.state is DeviceState.READY
    assert card.profiles() == named(["24Q", "12Q", "12Q"])
    again = [step for step in card.steps if isinstance(step, ClearType)]
    assert again == [ClearType(function(1), "L40S-12Q", rearranges="L40S-24Q")]


def test_a_small_vgpu_in_use_in_the_way_of_a_big_one_is_named_and_the_others_are_kept() -> None:
    card = PaperCard(mixed=True)
    for number in (1, 2, 3):
        card.put(number, "L40S-12Q")
    card.take(2)
    card.users = {1, 3}
    verdict = card.obey(order(("24Q", 1), ("12Q", 2), mixed=True))
    assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.IN_USE)
    assert function(1) in verdict.message
    assert card.steps == []


def test_what_is_beyond_the_layout_is_left_or_cleared_as_the_map_says() -> None:
    for clear in (False, True):
        card = PaperCard(types={1: "L40S-12Q", 2: "L40S-12Q", 3: "L40S-12Q"})
        verdict = card.obey(order(("12Q", 2), clear=clear))
        assert verdict.state is DeviceState.READY
        assert card.types == dict.fromkeys((1, 2) if clear else (1, 2, 3), "L40S-12Q")


def test_one_unreadable_function_is_one_condition() -> None:
    card = PaperCard(unread={1})
    verdict = card.obey(order(("24Q", 2)))
    assert card.types == dict.fromkeys((2, 3), "L40S-24Q")
    assert states(verdict)[function(1)] == (DeviceState.FAILED, Reason.DEVICE_UNREADABLE)
    assert states(verdict)[function(2)] == (DeviceState.READY, Reason.TYPED)


def test_a_full_card_that_is_as_ordered_is_adopted_without_a_write() -> None:
    card = PaperCard(types={1: "L40S-24Q", 2: "L40S-24Q"})
    verdict = card.obey(order(("24Q", 2), clear=True))
    assert (verdict.state, verdict.reason) == (DeviceState.READY, Reason.ADOPTED)
    assert card.steps == []


def test_a_type_without_a_known_name_is_left_alone() -> None:
    card = PaperCard(types={1: "L40S-24Q", 2: "L40S-24Q"}, unnamed={1, 2})
    verdict = card.obey(order(("24Q", 2), clear=True))
    assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.TYPE_UNKNOWN)
    assert card.steps == []


@pytest.mark.parametrize(("orders", "intent"), [(order(("24Q", 2)), Intent.HOLD), (order(), Intent.APPLY)])
def test_what_is_held_or_has_no_layout_is_reported_and_not_written(orders: VGPUOrder, intent: Intent) -> None:
    card = PaperCard(types={1: "L40S-12Q"})
    verdict = card.obey(orders, intent)
    assert (verdict.state, verdict.reason) == (DeviceState.PENDING, Reason.HELD)
    assert [one.profile for one in verdict.vgpus] == ["L40S-12Q"]
    assert card.steps == []


def test_a_card_without_its_driver_is_not_written() -> None:
    verdict = (card := PaperCard(driver=None)).obey(order(("24Q", 2)))
    assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.DRIVER_MISSING)
    assert card.steps == []


def test_a_card_that_npufleets_change_left_without_its_driver_gets_it_back_once() -> None:
    card = PaperCard(driver=None, number=0, before=CardFormer(0))
    assert card.obey(order(("24Q", 2))).state is DeviceState.READY
    assert card.steps[0] == FindDriver()
    seen = PaperCard(driver=None, before=CardFormer(0)).seen()
    failed = {CARD: Obstacle(Reason.FUNCTIONS_FAILED, "no driver took it")}
    verdict = next_step(order(("24Q", 2)), Intent.APPLY, replace(seen, failed=failed))
    assert isinstance(verdict, Verdict) and verdict.reason is Reason.FUNCTIONS_FAILED


def test_a_card_in_another_mode_is_never_written() -> None:
    for card in (PaperCard(makes_vgpus=False), PaperCard(total=0, number=0)):
        verdict = card.obey(order(("24Q", 2), clear=True))
        assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.FRAMEWORK_MISSING)
        assert card.steps == []


def test_a_released_card_gets_back_what_it_had() -> None:
    card = PaperCard(number=0)
    card.obey(order(("24Q", 2)))
    card.users = {1}
    verdict = card.obey(order(), Intent.RELEASE)
    assert card.steps == [ClearType(function(2), "L40S-24Q")]
    assert (verdict.state, verdict.reason) == (DeviceState.BLOCKED, Reason.IN_USE)
    card.users = set()
    assert card.obey(order(), Intent.RELEASE).state is DeviceState.RELEASED
    assert card.number == 0


def test_a_released_card_keeps_the_types_of_others_and_gets_a_changed_one_back() -> None:
    card = PaperCard(types={1: "L40S-12Q", 2: "L40S-12Q", 3: "L40S-12Q"})
    card.obey(order(("12Q", 1), ("24Q", 1), mixed=True))
    assert card.profiles() != named(["12Q"] * 3)
    assert card.obey(order(), Intent.RELEASE).state is DeviceState.RELEASED
    assert card.number == 16
    assert card.types == dict.fromkeys((1, 2, 3), "L40S-12Q")


def test_a_released_card_keeps_all_when_it_is_to_be_left() -> None:
    card = PaperCard(number=0)
    card.obey(order(("24Q", 2)))
    assert card.obey(order(), Intent.RELEASE, restore=False).state is DeviceState.RELEASED
    assert card.steps == []
    assert card.profiles() == named(["24Q", "24Q"])


def test_the_mode_goes_when_one_size_fits_only_without_it() -> None:
    card = PaperCard(mixed=True, types={1: "L40S-8Q"})
    assert card.obey(order(("8Q", 6))).state is DeviceState.READY
    assert card.steps[:2] == [ClearType(function(1), "L40S-8Q", rearranges=FOR_MODE), MixSizes(False)]
