"""Every read of a device on the way of a move, failing or finding the device gone: one condition, and nothing lost.

Reads of the journal and of the rest of the host have tests of their own. Most reads leave the same behind when they
fail: as in ``test_every_step_struck``, it is tried once from each such thing that all ends well.
"""

import asyncio
import errno
from collections.abc import Iterator, Mapping

import pytest

from tests.builders.fault_scenes import FUNCTION_SCENES, SCENES, Scene, Stage
from tests.builders.machine_state import state_of
from tests.builders.strikes import Strike, StruckReads

# At every so many reads one is struck: many virtual functions are read alike.
EVERY = {"a bind": 1, "a return": 1, "functions are made": 4}
FLOORS = {"a bind": 90, "a return": 100, "functions are made": 100}
GONE_AT = 3


async def tried(scene: Scene, strikes: Mapping[int, Strike], ended: set[object]) -> int:
    """One case; how many reads of the device the pass made."""
    stage = Stage(scene)
    try:
        await stage.begin()
        struck, done = await stage.struck_pass(strikes, StruckReads)
        assert done is not None
        assert struck.fallen == strikes.keys(), "a strike that fell on nothing"
        stage.check_nothing_is_lost()
        stage.check_reports(done)
        left = state_of(stage.bench.kernel), frozenset(stage.bench.touched())
        if left not in ended:
            await stage.check_it_ends_well()
            ended.add(left)
        return len(struck.steps)
    except AssertionError as error:
        error.add_note(f"{scene.name}, struck at read {dict(strikes)}")
        raise
    finally:
        stage.close()


def strikes_at(number: int, address: str) -> Iterator[Strike]:
    yield Strike(errno=(errno.EIO, errno.ENODEV, errno.EACCES)[number % 3], name="refused")
    if number % GONE_AT == 0:
        yield Strike(event=lambda kernel: kernel.hot_remove(address), name="gone")


async def enumerated(scene: Scene) -> int:
    ended: set[object] = set()
    reads, cases = await tried(scene, {}, ended), 1
    for number in range(0, reads, EVERY[scene.name]):
        for strike in strikes_at(number, next(iter(scene.ends))):
            await tried(scene, {number: strike}, ended)
            cases += 1
    assert len(ended) >= 3, "strikes that all leave the same are none"
    return cases


@pytest.mark.parametrize("name", EVERY)
def test_whatever_read_is_struck_the_device_is_told_of_and_a_later_pass_gets_there(name: str) -> None:
    [scene] = [scene for scene in (*SCENES, *FUNCTION_SCENES) if scene.name == name]
    cases = asyncio.run(enumerated(scene))
    print(f"{name}: {cases} cases")
    assert cases >= FLOORS[name]
