"""Virtual functions that somebody has made in place of those that npufleet made: they are his, under every order."""

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from node_host.acting.journal import JOURNAL, Journal, JournalEntry
from node_host.host import Host
from node_host.pci.device import DEVICES
from simulated_node.description import HostDescription
from tests.builders.binder import Bench, host, order, report_of, verdict
from tests.builders.fault_scenes import SRIOV_CARD, functions_of, sriov_card
from tests.builders.inline import InlineCalls
from tests.builders.strikes import Crash

Make = Callable[..., Bench]

CARD = SRIOV_CARD
FIRST, SECOND = "0000:61:10.0", "0000:61:10.2"
LOADED = [{"name": "vfio_pci", "state": "Loaded"}, {"name": "igbvf", "state": "Loaded"}]
OURS, THEIRS = 2, 5


def state(bench: Bench) -> tuple[int, bool]:
    """Number of virtual functions, and whether new ones are offered to drivers."""
    kernel = bench.kernel.host()
    numbers = (int(kernel.read(f"{DEVICES}/{CARD}/{name}")) for name in ("sriov_numvfs", "sriov_drivers_autoprobe"))
    number, offered = numbers
    return number, bool(offered)


def write(bench: Bench, attribute: str, value: int) -> None:
    bench.kernel.write(f"{DEVICES}/{CARD}/{attribute}", str(value).encode())


class SwitchStaysOff:
    """A host that refuses to switch the offer of new functions on again."""

    def __init__(self, inner: Host) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, path: str, data: bytes) -> None:
        if path.endswith("sriov_drivers_autoprobe") and data.strip() == b"1":
            raise OSError(errno.EIO, "refused")
        self._inner.write(path, data)


async def replaced(make: Make, *, unoffered: bool = False) -> Bench:
    """We make two, then somebody makes five; ``unoffered``: our bind had failed, so the switch was not set back yet."""
    bench = make(host(sriov_card(), modules=LOADED))
    if unoffered:
        bench.restart(host=SwitchStaysOff(bench.host))
    bench.order(functions_of(OURS))
    done = await bench.run()
    assert verdict(done, CARD)[0] == ("Failed" if unoffered else "Ready"), report_of(done, CARD)
    bench.restart(host=bench.kernel.host())
    write(bench, "sriov_numvfs", 0)
    write(bench, "sriov_numvfs", THEIRS)
    assert state(bench) == (THEIRS, not unoffered)
    bench.mark()
    return bench


@pytest.mark.parametrize("wanted", [OURS, 3, 7])
@pytest.mark.parametrize("unoffered", [False, True])
async def test_an_order_for_another_number_is_blocked_and_nothing_is_written(
    make: Make, wanted: int, unoffered: bool
) -> None:
    bench = await replaced(make, unoffered=unoffered)
    bench.order(functions_of(wanted))
    for _ in range(2):
        done = await bench.run()
        assert verdict(done, CARD) == ("Blocked", "FunctionsOfOthers")
        text = f"it has {THEIRS} virtual functions that npufleet did not make, the order wants {wanted}"
        assert report_of(done, CARD).message.startswith(text)
        assert (bench.writes, state(bench)[0]) == ([], THEIRS)
    assert done.planned.is_empty
    bench.order(functions_of(wanted, intent="Release"))
    assert verdict(await bench.run(), CARD) == ("Released", "Released")
    assert (state(bench), bench.journal().entries) == ((THEIRS, True), {})


async def test_as_many_of_others_as_ours_were_are_his_too_once_the_others_were_seen(make: Make) -> None:
    bench = await replaced(make)
    await bench.run()
    write(bench, "sriov_numvfs", 0)
    write(bench, "sriov_numvfs", OURS)
    assert verdict(await bench.run(), CARD) == ("Ready", "FunctionsBound")
    bench.order(functions_of(OURS, intent="Release"))
    assert verdict(await bench.run(), CARD) == ("Released", "Released")
    assert (state(bench), bench.driver(FIRST)) == ((OURS, True), "igbvf")


@pytest.mark.parametrize("unoffered", [False, True])
@pytest.mark.parametrize("then", [functions_of(THEIRS, intent="Release"), functions_of(None, mode="Container")])
async def test_an_order_for_as_many_adopts_them_and_they_stay_on_release(
    make: Make, unoffered: bool, then: dict[str, Any]
) -> None:
    bench = await replaced(make, unoffered=unoffered)
    before = bench.driver(FIRST)
    assert before == (None if unoffered else "igbvf")
    bench.move(SECOND, "vfio-pci", override="vfio-pci")
    bench.order(functions_of(THEIRS))
    done = await bench.run()
    assert verdict(done, CARD) == ("Ready", "FunctionsBound")
    assert "were there before npufleet" in report_of(done, CARD).message
    parts = {part.address: part.reason for part in report_of(done, CARD).virtual_functions}
    assert (len(parts), parts[FIRST], parts[SECOND]) == (THEIRS, "Bound", "Adopted")
    assert CARD not in bench.journal().entries
    assert state(bench) == (THEIRS, True)
    assert f"{CARD}/sriov_numvfs" not in {path for path, _ in bench.writes}
    bench.restart()
    assert (await bench.run()).planned.is_empty
    bench.order(then)
    assert verdict(await bench.run(), CARD)[0] in ("Released", "Ready")
    assert (state(bench), bench.journal().entries) == ((THEIRS, True), {})
    assert (bench.driver(FIRST), bench.driver(SECOND)) == (before, "vfio-pci")


@pytest.mark.parametrize("unoffered", [False, True])
@pytest.mark.parametrize(
    "then",
    [functions_of(OURS, intent="Release"), functions_of(None, intent="Release"), functions_of(None, mode="VGPU")],
)
async def test_a_release_leaves_them_where_they_are_and_sets_the_switch_back(
    make: Make, unoffered: bool, then: dict[str, Any]
) -> None:
    bench = await replaced(make, unoffered=unoffered)
    bench.move(FIRST, "vfio-pci", override="vfio-pci")
    bench.mark()
    bench.order(then)
    done = await bench.run()
    assert verdict(done, CARD)[0] in ("Released", "Ready", "Blocked")
    assert bench.sysfs_writes == ([(f"{CARD}/sriov_drivers_autoprobe", "1")] if unoffered else [])
    assert (state(bench), bench.journal().entries) == ((THEIRS, True), {})
    assert bench.driver(FIRST) == "vfio-pci"


class DyingJournal(Journal):
    """The process dies at a change of the journal, after so many others."""

    changes_left = 0

    def _change(self, change: Callable[[dict[str, JournalEntry]], object]) -> None:
        if self.changes_left == 0:
            raise Crash
        self.changes_left -= 1
        super()._change(change)


@pytest.fixture
def inline(tmp_path: Path) -> Iterator[Make]:
    """As `make`, and calls are made where they stand, so that a death ends the pass."""
    with ExitStack() as stack:

        def build(description: HostDescription) -> Bench:
            bench = Bench(tmp_path / "host", description, calls=InlineCalls())
            stack.callback(bench.close)
            return bench

        yield build


@pytest.mark.parametrize("changes", range(9))
@pytest.mark.parametrize("then", [functions_of(THEIRS), functions_of(OURS, intent="Release")])
async def test_a_death_while_they_are_given_up_takes_none_of_them_from_their_driver(
    inline: Make, changes: int, then: dict[str, Any]
) -> None:
    bench = await replaced(inline)
    bench.move(FIRST, "vfio-pci", override="vfio-pci")
    journal = DyingJournal(bench.kernel.host().local(JOURNAL))
    journal.changes_left = changes
    bench.restart(journal=journal)
    bench.order(then)
    # Two entries of functions and their card's go; four functions are bound when they are adopted.
    needed = 3 if then["intent"] == "Release" else 7
    with pytest.raises(Crash) if changes < needed else nullcontext():
        await bench.run()
    bench.restart()
    await bench.run()
    bench.order(functions_of(THEIRS, intent="Release"))
    assert verdict(await bench.run(), CARD) == ("Released", "Released")
    assert (state(bench), bench.journal().entries) == ((THEIRS, True), {})
    assert (bench.driver(FIRST), bench.driver(SECOND)) == ("vfio-pci", "igbvf")


async def test_a_hold_changes_nothing_of_them(make: Make) -> None:
    bench = await replaced(make)
    remembered = bench.journal().entries
    bench.order(functions_of(OURS, intent="Hold"))
    assert verdict(await bench.run(), CARD) == ("Pending", "Held")
    assert (bench.writes, bench.journal().entries) == ([], remembered)


async def test_functions_with_no_order_of_their_card_are_held(make: Make) -> None:
    bench = await replaced(make)
    remembered = bench.journal().entries
    bench.order(order("0000:23:00.0"))
    await bench.run()
    assert (bench.writes, bench.journal().entries) == ([], remembered)
