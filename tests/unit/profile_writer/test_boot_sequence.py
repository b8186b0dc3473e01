"""From a card without virtual functions to its layout: in the right order, once, again after each boot and load."""

from collections.abc import Callable

import pytest

from simulated_node.description import VgpuType
from tests.builders.writer import (
    CARD,
    FUNCTIONS,
    MIXED,
    OTHER,
    TWO,
    TYPES,
    WriterBench,
    card_of,
    carries,
    l40s,
    stand,
)

ENABLE = ("sriov-manage", f"-e {CARD}")
MIX = ("nvidia-smi", f"vgpu -i {CARD} -shm 1")


def types_of_release(*, without: str | None = None) -> dict[str, list[VgpuType]]:
    """Types as another release of the driver numbers them, by card."""
    known = next(device.vgpu for device in l40s().devices if device.address == CARD)
    assert known is not None
    other = [kind.model_copy(update={"id": kind.id + 100}) for kind in known.types if kind.name != f"NVIDIA {without}"]
    return {CARD: other, OTHER: other}


async def test_functions_come_first_then_types(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    done = await bench.run()
    assert bench.writes == [ENABLE, (FUNCTIONS[0], "1155"), (FUNCTIONS[1], "1155")]
    assert stand(done) == ("Ready", "Typed")
    assert [one.profile for one in card_of(done).vgpus] == ["L40S-24Q", "L40S-24Q"]
    assert card_of(done).driver_release == "595.58.02"


async def test_mixed_sizes_are_set_after_the_functions_are_on_and_the_big_one_goes_first(bench: WriterBench) -> None:
    bench.order(carries(MIXED))
    assert stand(await bench.run()) == ("Ready", "Typed")
    assert bench.writes == [
        ENABLE,
        MIX,
        (FUNCTIONS[0], "1155"),
        (FUNCTIONS[1], "1153"),
        (FUNCTIONS[2], "1153"),
    ]


async def test_cards_of_one_node_carry_layouts_of_their_own(bench: WriterBench) -> None:
    bench.order(carries(TWO), carries(MIXED, OTHER))
    done = await bench.run()
    assert (stand(done), stand(done, OTHER)) == (("Ready", "Typed"), ("Ready", "Typed"))
    assert sorted(bench.profiles(OTHER).values()) == ["L40S-12Q", "L40S-12Q", "L40S-24Q"]


@pytest.mark.parametrize("layout", [TWO, MIXED], ids=["two", "mixed"])
async def test_a_second_pass_changes_nothing_and_runs_no_program(bench: WriterBench, layout: dict[str, int]) -> None:
    bench.order(carries(layout))
    await bench.run()
    await bench.run()
    before = len(bench.kernel.writes)
    first = bench.status
    await bench.run()
    assert len(bench.kernel.writes) == before
    assert bench.status == first


async def test_another_layout_keeps_what_it_can(bench: WriterBench) -> None:
    bench.order(carries({"L40S-12Q": 4}))
    await bench.run()
    bench.mark()
    bench.order(carries({"L40S-12Q": 3}, unassigned="Clear"))
    assert stand(await bench.run()) == ("Ready", "Typed")
    assert bench.writes == [(FUNCTIONS[3], "0")]


async def test_from_two_big_ones_to_a_mix_and_back(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    await bench.run()
    for layout in (MIXED, TWO):
        bench.order(carries(layout))
        done = await bench.settled()
        assert stand(done)[0] == "Ready"
        wanted = [profile for profile, count in layout.items() for _ in range(count)]
        assert sorted(bench.profiles().values()) == sorted(wanted)


@pytest.mark.parametrize("layout", [TWO, MIXED], ids=["two", "mixed"])
async def test_a_boot_brings_the_types_back_on_the_same_functions(bench: WriterBench, layout: dict[str, int]) -> None:
    bench.order(carries(layout))
    await bench.run()
    before = bench.profiles()
    bench.kernel.reboot()
    assert bench.profiles() == {}
    bench.restart()
    assert stand(await bench.run()) == ("Ready", "Typed")
    assert bench.profiles() == before


async def test_a_boot_brings_types_back_that_lie_in_no_order_of_their_own(bench: WriterBench) -> None:
    bench.order(carries({"L40S-24Q": 1}))
    await bench.run()
    bench.set_type(FUNCTIONS[0], 0)
    bench.kernel.open_device(bench.group(FUNCTIONS[0]))
    done = await bench.run()
    assert bench.profiles() == {FUNCTIONS[1]: "L40S-24Q"}, done
    bench.kernel.reboot()
    bench.restart()
    await bench.run()
    assert bench.profiles() == {FUNCTIONS[1]: "L40S-24Q"}


async def test_a_driver_that_is_loaded_anew_gets_its_types_back_on_the_same_functions(bench: WriterBench) -> None:
    bench.order(carries(MIXED))
    await bench.run()
    before = bench.profiles()
    bench.kernel.reload_driver("nvidia")
    bench.mark()
    assert stand(await bench.run()) == ("Ready", "Typed")
    assert bench.profiles() == before
    assert bench.writes[:2] == [ENABLE, MIX]


async def test_another_release_has_other_numbers_for_the_same_names(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    await bench.run()
    bench.kernel.reload_driver("nvidia", release="600.10.01", types=types_of_release())
    done = await bench.run()
    assert stand(done) == ("Ready", "Typed")
    assert [bench.type_of(one) for one in FUNCTIONS[:2]] == [1255, 1255]
    assert card_of(done).driver_release == "600.10.01"


async def test_a_name_that_the_new_release_lacks_is_told_with_those_that_it_has(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    await bench.run()
    bench.kernel.reload_driver("nvidia", release="600.10.01", types=types_of_release(without="L40S-24Q"))
    done = await bench.run()
    assert stand(done) == ("Blocked", "ProfileUnknown")
    assert "L40S-12Q" in card_of(done).message
    assert "L40S-24Q" not in card_of(done).offered


async def test_a_profile_that_nobody_knows_clears_nothing(bench: WriterBench) -> None:
    bench.order(carries(TWO))
    await bench.run()
    bench.mark()
    bench.order(carries({"L40S-7Q": 2}))
    done = await bench.run()
    assert stand(done) == ("Blocked", "ProfileUnknown")
    assert bench.writes == []
    assert list(bench.profiles().values()) == ["L40S-24Q", "L40S-24Q"]


async def test_a_full_card_still_has_names_after_a_restart(bench: WriterBench) -> None:
    """A card that is full shows empty lists."""
    bench.order(carries(TWO))
    await bench.run()
    bench.mark()
    bench.restart()
    assert stand(await bench.run()) == ("Ready", "Typed")
    assert bench.writes == []


async def test_what_is_not_ordered_is_not_touched(bench: WriterBench) -> None:
    bench.order()
    done = await bench.run()
    assert done.profiles.devices == ()
    assert bench.kernel.writes == []


@pytest.mark.parametrize("layout", [{}, TWO], ids=["no layout", "hold"])
async def test_an_order_to_leave_a_card_leaves_it(make: Callable[..., WriterBench], layout: dict[str, int]) -> None:
    bench = make()
    bench.order(carries(layout, intent="Apply" if not layout else "Hold"))
    done = await bench.run()
    assert stand(done) == ("Pending", "Held")
    assert bench.writes == []
    assert TYPES["L40S-24Q"] == 1155
