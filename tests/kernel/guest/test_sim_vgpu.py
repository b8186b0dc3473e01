"""The test module that plays vGPU functions keeps its word on a real kernel: the daemons are judged against it."""

from __future__ import annotations

import errno
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel.guest.conftest import Lab
from tests.kernel.lab.guest_side import ask_host
from tests.kernel.lab.roles import PORTS, ROLES
from tests.kernel.modules.kernel_log import no_complaints
from tests.kernel.modules.loaded import (
    ModuleInUseError,
    is_loaded,
    load,
    loaded,
    mount_debugfs,
    unload,
    unload_when_free,
    without,
)
from tests.kernel.modules.polling import until
from tests.kernel.modules.processes import exit_code, forked
from tests.kernel.modules.refusals import refused
from tests.kernel.modules.sim_vgpu_card import (
    DEBUGFS,
    FRAME_BUFFER_GIB,
    HEADER,
    IDS,
    MODULE,
    PCI_DEVICES,
    Card,
    write,
)
from tests.kernel.modules.sim_vgpu_writers import scribble, scribble_until_gone, seize
from tests.kernel.modules.vfio_user import Until, VfioUser, vfio_process

pytestmark = pytest.mark.guest("kernel")

# What the machine is built with, for plugging it in again.
OTHER_CARD = {
    "driver": "igb",
    "id": "other_pf",
    "bus": PORTS[ROLES["other_pf"].slot],
    "mac": "52:54:00:6c:61:02",
    "romfile": "",
}
# Fewer than the card has: each takes the kernel a third of a second to make.
FUNCTIONS = 5


@pytest.fixture(scope="module")
def driver(lab: Lab) -> Iterator[None]:
    mount_debugfs()
    load("vfio_iommu_type1")
    # Both match the functions by their id; the one that was there first would get them.
    with without("igbvf"), loaded("sim_vgpu"):
        try:
            yield
        finally:
            Card(lab["pf"]).enable(0)


@pytest.fixture
def card(driver: None, lab: Lab) -> Iterator[Card]:
    """All functions there, on the driver, without a type. Made anew only when the test before left them otherwise."""
    card = Card(lab["pf"])
    if not is_fresh(card):
        card.enable(0)
        card.enable(FUNCTIONS)
    with no_complaints():
        yield card


def is_fresh(card: Card) -> bool:
    if [function.driver for function in card.functions()] != ["nvidia"] * FUNCTIONS:
        return False
    for function in card.functions():
        function.set(0)
    return not card.mixed_sizes


def test_a_function_binds_by_its_id_and_gets_nodes_and_attributes(card: Card) -> None:
    functions = card.functions()
    assert len(functions) == FUNCTIONS
    for function in functions:
        assert function.driver == "nvidia"
        assert function.group_node.is_char_device()
        assert len(list((function.path / "vfio-dev").glob("vfio*"))) == 1
        assert (function.path / "nvidia/current_vgpu_type").read_text() == "0\n"
    expected = "".join(f"{number}  : NVIDIA L40S-{gib}Q\n" for gib, number in IDS.items())
    assert (functions[0].path / "nvidia/creatable_vgpu_types").read_text() == f"{HEADER}\n{expected}"


def test_only_virtual_functions_are_taken_even_with_an_override(card: Card, lab: Lab) -> None:
    twin = PCI_DEVICES / lab["twin_a"]
    write(twin / "driver_override", "nvidia")
    try:
        write(Path("/sys/bus/pci/drivers_probe"), twin.name)
        assert not (twin / "driver").exists()
    finally:
        write(twin / "driver_override", "\n")


def test_a_function_goes_to_vfio_pci_by_override_and_comes_back_without_a_type(card: Card) -> None:
    function = card.functions()[0]
    function.set(IDS[24])
    load("vfio-pci")
    write(function.path / "driver_override", "vfio-pci")
    write(function.path / "driver/unbind", function.bdf)
    write(Path("/sys/bus/pci/drivers_probe"), function.bdf)
    assert (function.driver, (function.path / "nvidia").exists(), card.used_gib) == ("vfio-pci", False, 0)
    write(function.path / "driver/unbind", function.bdf)
    write(function.path / "driver_override", "nvidia")
    write(Path("/sys/bus/pci/drivers_probe"), function.bdf)
    assert (function.driver, function.current) == ("nvidia", 0)
    write(function.path / "driver_override", "\n")


def test_a_type_is_set_read_back_and_cleared(card: Card) -> None:
    function = card.functions()[0]
    for gib, number in IDS.items():
        function.set(f"{number}\n")
        assert (function.current, card.used_gib, function.creatable()) == (number, gib, {})
        function.set(0)
        assert (function.current, card.used_gib) == (0, 0)


def test_the_lists_of_the_siblings_shrink_to_one_size_and_then_to_nothing(card: Card) -> None:
    first, second, *others = card.functions()
    first.set(IDS[24])
    assert [function.creatable() for function in (second, *others)] == [{IDS[24]: 24}] * (FUNCTIONS - 1)
    second.set(IDS[24])
    assert [function.creatable() for function in card.functions()] == [{}] * FUNCTIONS
    assert card.used_gib == FRAME_BUFFER_GIB
    with refused(errno.EIO):
        others[0].set(IDS[24])
    first.set(0)
    assert others[0].creatable() == first.creatable() == {IDS[24]: 24}
    second.set(0)
    assert others[0].creatable() == {number: gib for gib, number in IDS.items()}


@pytest.mark.parametrize(("gib", "fitting"), [(48, 1), (24, 2), (16, 3), (12, 4), (8, FUNCTIONS)])
def test_a_card_carries_as_many_of_a_size_as_its_frame_buffer_and_its_functions_allow(
    card: Card, gib: int, fitting: int
) -> None:
    for function in card.functions()[:fitting]:
        function.set(IDS[gib])
    for function in card.functions()[fitting:]:
        with refused(errno.EIO):
            function.set(IDS[gib])
    assert card.used_gib == fitting * gib


def test_the_cards_do_not_share_their_frame_buffer(card: Card, lab: Lab) -> None:
    other = Card(lab["other_pf"])
    other.enable(1)
    try:
        card.functions()[0].set(IDS[48])
        (function,) = other.functions()
        assert function.creatable().keys() == set(IDS.values())
        function.set(IDS[4])
        assert (card.used_gib, other.used_gib) == (48, 4)
    finally:
        other.enable(0)
    assert not (DEBUGFS / other.bdf).exists()


def test_the_type_that_is_there_may_be_written_again_and_no_other(card: Card) -> None:
    first, second, *_ = card.functions()
    first.set(IDS[24])
    first.set(IDS[24])
    second.set(0)
    for other in (IDS[12], IDS[48]):
        with refused(errno.EIO):
            first.set(other)
    assert (first.current, second.current, card.used_gib) == (IDS[24], 0, 24)


@pytest.mark.parametrize("number", [1, 1149, 1157, 4294967295])
def test_an_unknown_type_is_an_input_output_error(card: Card, number: int) -> None:
    function = card.functions()[0]
    with refused(errno.EIO):
        function.set(number)
    assert (function.current, card.used_gib) == (0, 0)


@pytest.mark.parametrize(
    "text", ["\n", "x", "1155x", "-1", "0x483", "1155 1155", "4294967296", "9" * 40, "NVIDIA L40S-24Q"]
)
def test_what_is_no_number_is_invalid(card: Card, text: str) -> None:
    function = card.functions()[0]
    function.set(IDS[24])
    with refused(errno.EINVAL):
        function.set(text)
    assert function.current == IDS[24]


@pytest.mark.parametrize("hold", [Until.CONTAINER, Until.DEVICE])
def test_nobody_changes_the_type_of_a_function_that_is_in_use(card: Card, hold: Until) -> None:
    function, sibling, *_ = card.functions()
    function.set(IDS[24])
    with vfio_process(function.bdf, hold):
        for value in (0, IDS[24], IDS[12]):
            with refused(errno.EBUSY):
                function.set(value)
        with refused(errno.EINVAL):
            function.set("x")
        assert function.current == IDS[24]
        sibling.set(IDS[24])
    function.set(0)
    assert (function.current, sibling.current) == (0, IDS[24])


def test_a_group_node_that_is_merely_open_is_not_seen(card: Card) -> None:
    """VFIO core keeps that to itself: a limit of every driver, which users of the module must know."""
    function = card.functions()[0]
    with VfioUser(function.bdf, Until.GROUP):
        function.set(IDS[24])
        with refused(errno.EBUSY):
            VfioUser(function.bdf, Until.GROUP)
    assert function.current == IDS[24]


def test_a_user_that_is_killed_holds_nothing_any_more(card: Card) -> None:
    function = card.functions()[0]
    function.set(IDS[24])
    with vfio_process(function.bdf) as user:
        os.kill(user, signal.SIGKILL)
        assert exit_code(user) == -signal.SIGKILL
        function.set(0)
    assert card.used_gib == 0


def test_functions_that_are_made_anew_have_forgotten_their_types(card: Card) -> None:
    first, second, *_ = card.functions()
    first.set(IDS[12])
    second.set(IDS[12])
    card.enable(0)
    assert not (DEBUGFS / card.bdf).exists()
    card.enable(2)
    assert [function.current for function in card.functions()] == [0, 0]
    assert (card.used_gib, set(card.functions()[0].creatable())) == (0, set(IDS.values()))


def test_unbinding_one_function_gives_back_its_frame_buffer_alone(card: Card) -> None:
    first, second, third, *_ = card.functions()
    first.set(IDS[24])
    second.set(IDS[24])
    write(first.path / "driver/unbind", first.bdf)
    assert not (first.path / "nvidia").exists()
    assert (second.current, card.used_gib, third.creatable()) == (IDS[24], 24, {IDS[24]: 24})
    write(Path("/sys/bus/pci/drivers/nvidia/bind"), first.bdf)
    assert (first.current, first.creatable()) == (0, {IDS[24]: 24})


def in_thread(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def test_taking_functions_away_waits_for_their_user_and_keeps_the_frame_buffer_until_then(card: Card) -> None:
    function = card.functions()[0]
    function.set(IDS[48])
    with vfio_process(function.bdf):
        removal = in_thread(lambda: card.enable(0))
        until(lambda: not (function.path / "nvidia").exists(), "the attributes go before the user")
        assert removal.is_alive()
        assert card.used_gib == 48
    removal.join(20)
    assert not removal.is_alive()
    assert (card.enabled, function.path.exists()) == (0, False)


def test_a_card_whose_own_driver_goes_takes_its_functions_along(card: Card) -> None:
    function = card.functions()[0]
    function.set(IDS[24])
    write(Path("/sys/bus/pci/drivers/igb/unbind"), card.bdf)
    try:
        assert not function.path.exists()
        assert not (DEBUGFS / card.bdf).exists()
    finally:
        write(Path("/sys/bus/pci/drivers/igb/bind"), card.bdf)
    card.enable(1)
    assert [function.current for function in card.functions()] == [0]


def test_a_card_that_is_unplugged_takes_its_functions_along(card: Card, lab: Lab) -> None:
    other = Card(lab["other_pf"])
    other.enable(1)
    function = other.functions()[0]
    function.set(IDS[24])
    ask_host("device_del", {"id": "other_pf"})
    until(lambda: not other.path.exists(), "the card leaves its slot")
    try:
        assert not function.path.exists()
        assert not (DEBUGFS / other.bdf).exists()
        assert card.functions()[0].creatable().keys() == set(IDS.values())
    finally:
        ask_host("device_add", OTHER_CARD)
        until(lambda: (other.path / "driver").exists(), "the card is back")
    other.enable(1)
    assert [again.current for again in other.functions()] == [0]
    other.enable(0)


def test_the_module_goes_only_when_nobody_uses_a_function_and_forgets_everything(card: Card) -> None:
    function = card.functions()[0]
    function.set(IDS[24])
    with vfio_process(function.bdf), pytest.raises(ModuleInUseError):
        unload("sim_vgpu")
    assert function.current == IDS[24]
    node = function.group_node
    unload_when_free("sim_vgpu")
    assert (function.driver, node.exists(), (function.path / "nvidia").exists()) == (None, False, False)
    assert not is_loaded("sim_vgpu")
    load("sim_vgpu")
    assert [(one.driver, one.current) for one in card.functions()] == [("nvidia", 0)] * FUNCTIONS


def test_mixed_sizes_start_at_fixed_places_so_that_order_matters(card: Card) -> None:
    assert not card.mixed_sizes
    card.allow_mixed_sizes(True)
    first, second, third, fourth, *_ = card.functions()
    first.set(IDS[24])
    second.set(IDS[12])
    assert set(third.creatable().values()) == {4, 6, 8, 12}
    with refused(errno.EBUSY):
        card.allow_mixed_sizes(False)
    third.set(IDS[12])
    assert fourth.creatable() == {}
    for function in (first, second, third):
        function.set(0)
    first.set(IDS[4])
    second.set(IDS[24])
    # 20 GiB are left, 16 of them in one piece, and yet none of a 16 GiB type's two places is free.
    assert card.used_gib == 28
    assert set(third.creatable().values()) == {4, 6, 8, 12}
    card.enable(0)
    card.enable(1)
    assert not card.mixed_sizes


def test_writers_at_once_never_give_away_more_than_the_frame_buffer(card: Card) -> None:
    """One at a time can have the whole frame buffer. A write dawdles between check and deed, while others try."""
    write(MODULE / "parameters/write_delay_us", "500")
    gate, opener = os.pipe()
    writers = [forked(functools.partial(seize, card, number, gate, opener)) for number in range(4)]
    os.close(opener)
    os.close(gate)
    codes = [exit_code(writer) for writer in writers]
    write(MODULE / "parameters/write_delay_us", "0")
    assert codes == [0] * len(writers)
    assert card.used_gib == 0


def test_writers_of_different_sizes_leave_one_size_and_a_true_account(card: Card) -> None:
    functions = card.functions()
    writers = [forked(functools.partial(scribble, function, 60)) for function in functions for _ in range(2)]
    assert [exit_code(writer) for writer in writers] == [0] * len(writers)
    sizes = {number: gib for gib, number in IDS.items()} | {0: 0}
    held = [sizes[function.current] for function in functions]
    assert card.used_gib == sum(held) <= FRAME_BUFFER_GIB
    assert len({gib for gib in held if gib}) <= 1


def test_functions_come_and_go_under_writers_and_users(card: Card) -> None:
    """Nothing of this may upset the kernel; what each loser of a race gets is an errno."""
    for _ in range(2):
        writers = [forked(functools.partial(scribble_until_gone, function)) for function in card.functions()]
        card.enable(0)
        assert [exit_code(writer) for writer in writers] == [0] * len(writers)
        card.enable(FUNCTIONS)
    assert card.used_gib == 0
