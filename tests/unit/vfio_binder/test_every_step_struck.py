"""Every step of every move, struck in each way it can be: refused with each errno, a lie, a death, a device that
vanishes.

The cases are enumerated from the steps that a run takes, and a strike may fall on the roll-back of another.

Many strikes leave the same behind: a refusal is the same to the host whatever its errno. What comes after is begun by a
new binder, which knows the host and its files alone (the status that it is given tells when conditions changed, and
decides nothing). So from each thing that is left behind, and each set of devices written to until then, it is tried
once that all ends well.
"""

import asyncio
import errno
from collections.abc import Callable, Iterator, Mapping

import pytest

from simulated_node.kernel import SimulatedKernel
from tests.builders.fault_scenes import FUNCTION_SCENES, SCENES, Scene, Stage
from tests.builders.handed_over_scenes import HANDED_OVER
from tests.builders.machine_state import state_of
from tests.builders.strikes import Kind, Step, Strike

# Of drivers/base/bus.c, drivers/pci/pci-driver.c, kernel/module and what security modules and a dying bus add.
ERRNOS: Mapping[Kind, tuple[int, ...]] = {
    Kind.OVERRIDE: (errno.EINVAL, errno.ENOMEM, errno.ENODEV, errno.EACCES),
    Kind.UNBIND: (errno.ENODEV, errno.EBUSY, errno.EIO, errno.EPERM, errno.ENOENT),
    Kind.PROBE: (errno.ENODEV, errno.EINVAL, errno.EIO),
    Kind.BIND: (errno.ENODEV, errno.EBUSY, errno.EINVAL, errno.EAGAIN, errno.ENOMEM),
    Kind.MODULE: (errno.ENOENT, errno.EIO, errno.ETIMEDOUT, errno.ENOPKG, errno.EPERM),
    Kind.NUMBER: (errno.EINVAL, errno.ERANGE, errno.ENOENT, errno.EBUSY, errno.ENOMEM, errno.ENODEV, errno.EIO),
    Kind.AUTOPROBE: (errno.EINVAL, errno.ENODEV, errno.EPERM),
    Kind.JOURNAL: (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT),
    # rename(2), of a tmpfs whose memory is used up, or that somebody has mounted otherwise.
    Kind.TOKEN: (errno.ENOENT, errno.EACCES, errno.ENOSPC, errno.EROFS, errno.EISDIR, errno.EIO, errno.EXDEV),
}
FLOORS = {
    "a bind with a companion": 150,
    "a return with a companion": 130,
    "a release that leaves the device": 12,
    "functions are made": 150,
    "functions of others are adopted": 130,
    "a bind with a companion of pods": 190,
    "functions of pods go": 50,
}
ALL = (*SCENES, *FUNCTION_SCENES, *HANDED_OVER)


def refusals(step: Step) -> Iterator[Strike]:
    for number in ERRNOS[step.kind]:
        yield Strike(errno=number, name=errno.errorcode[number])


def all_strikes(step: Step, addresses: tuple[str, ...]) -> Iterator[Strike]:
    yield from refusals(step)
    yield from deaths(step)
    if step.kind is not Kind.JOURNAL:
        yield Strike(lies=True, name="lie")
    for address in addresses:
        for before in (True, False):
            yield Strike(event=pulled(address), before=before, name=f"{address} gone {'before' if before else 'after'}")


def deaths(step: Step) -> Iterator[Strike]:
    yield Strike(crash=True, before=True, name="death before")
    yield Strike(crash=True, before=False, name="death after")


def pulled(address: str) -> Callable[[SimulatedKernel], None]:
    def pull(kernel: SimulatedKernel) -> None:
        kernel.hot_remove(address)

    return pull


async def tried(scene: Scene, strikes: Mapping[int, Strike], ended: set[object]) -> list[Step]:
    """One case; the steps of the pass that was struck. ``ended``: what is known to end well in this scene."""
    stage = Stage(scene)
    try:
        await stage.begin()
        struck, done = await stage.struck_pass(strikes)
        assert struck.fallen == strikes.keys(), "a strike that fell on nothing"
        stage.check_nothing_is_lost()
        if done is not None:
            stage.check_reports(done)
        left = state_of(stage.bench.kernel), frozenset(stage.bench.touched())
        if left not in ended:
            await stage.check_it_ends_well()
            ended.add(left)
        return struck.steps
    except AssertionError as error:
        case = ", ".join(f"{number}: {strike}" for number, strike in strikes.items())
        error.add_note(f"{scene.name}, struck at {case or 'no step'}")
        raise
    finally:
        stage.close()


async def enumerated(scene: Scene) -> tuple[int, int]:
    """Every single strike; and for the first refusal of each step, every refusal and death in what follows.

    How many cases that were, and how many different things they left behind.
    """
    ended: set[object] = set()
    steps = await tried(scene, {}, ended)
    cases = 1
    for number, step in enumerate(steps):
        for position, strike in enumerate(all_strikes(step, tuple(scene.ends))):
            followed = await tried(scene, {number: strike}, ended)
            cases += 1
            if position:
                continue
            for later, later_step in enumerate(followed[number + 1 :], number + 1):
                for second in (next(refusals(later_step)), *deaths(later_step)):
                    await tried(scene, {number: strike, later: second}, ended)
                    cases += 1
    return cases, len(ended)


@pytest.mark.parametrize("scene", ALL, ids=[scene.name for scene in ALL])
def test_whatever_step_is_struck_nothing_is_lost_and_a_later_pass_gets_there(scene: Scene) -> None:
    cases, ends = asyncio.run(enumerated(scene))
    print(f"{scene.name}: {cases} cases, {ends} things left behind")
    assert cases >= FLOORS.get(scene.name, 25)
    assert ends >= 5, "strikes that all leave the same are none"


# What a driver's probe says: drivers_probe hides it, bind tells.
PROBE_ERRORS = ("EIO", "EINVAL", "ENOMEM", "ENODEV", "EBUSY", "EPROBE_DEFER")


async def refused_by_drivers(scene: Scene, address: str, number: str, times: int) -> None:
    stage = Stage(scene)
    try:
        await stage.begin()
        stage.bench.kernel.fail_next(f"probe:*:{address}", number, times)
        _, done = await stage.struck_pass({})
        assert done is not None
        stage.check_nothing_is_lost()
        stage.check_reports(done)
        await stage.check_it_ends_well()
    except AssertionError as error:
        error.add_note(f"{scene.name}, {times} times {number} from the drivers of {address}")
        raise
    finally:
        stage.close()


@pytest.mark.parametrize("number", PROBE_ERRORS)
def test_a_driver_that_refuses_a_device_time_and_again_costs_that_group_alone_and_only_for_a_while(number: str) -> None:
    cases = 0
    for scene in SCENES:
        for address in scene.ends:
            for times in range(1, 5):
                asyncio.run(refused_by_drivers(scene, address, number, times))
                cases += 1
    print(f"{number}: {cases} cases")
    assert cases >= 48
