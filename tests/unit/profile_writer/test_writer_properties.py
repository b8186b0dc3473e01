"""Whatever users, administrators and boots do between any two changes: nobody loses a vGPU, and in the end all is as
ordered.
"""

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from node_host.host import HostWithTools, ToolResult
from simulated_node.description import HostDescription
from tests.builders.examples import at_least, times
from tests.builders.writer import CARD, MIXED, TWO, TYPES, WriterBench, card_of, carries, l40s, stand

ROUNDS: Final = times(2000)
ROUNDS_OF_A_NODE: Final = 10
LAYOUTS: Final = (TWO, MIXED, {"L40S-48Q": 1}, {"L40S-12Q": 4}, {"L40S-24Q": 1}, {"L40S-12Q": 1}, {"L40S-8Q": 6})


def small() -> HostDescription:
    """One L40S with six virtual functions: the fewer there are, the more often they are in each other's way."""
    known = l40s()
    devices = tuple(
        one.model_copy(update={"sriov_total_vfs": 6}) if one.address == CARD else one
        for one in known.devices
        if one.vgpu is None or one.address == CARD
    )
    return known.model_copy(update={"devices": devices})


class Judged:
    """A host port that looks at each change: who would lose something by it, and what happens next."""

    def __init__(self, host: HostWithTools, judge: "Node") -> None:
        self._host = host
        self._judge = judge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def write(self, path: str, data: bytes) -> None:
        if path.endswith("/current_vgpu_type"):
            function = path.split("/")[-3]
            assert function not in self._judge.open, f"{function} is in use and would become {data!r}"
            self._judge.may_open_late(function)
        before = self._judge.types_in_use()
        try:
            self._host.write(path, data)
        finally:
            assert self._judge.types_in_use() == before
            self._judge.something_happens()

    def run_tool(self, path: str, arguments: Sequence[str], *, inherit: Sequence[int] = ()) -> ToolResult:
        if "-q" in arguments:
            return self._host.run_tool(path, arguments, inherit=inherit)
        assert not self._judge.open, f"{path} {arguments} while {self._judge.open} are in use"
        assert not self._judge.bench.profiles(), f"{path} {arguments} while vGPUs live"
        result = self._host.run_tool(path, arguments, inherit=inherit)
        self._judge.something_happens()
        return result


class Node:
    """One node on which things happen at random."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.open: set[str] = set()
        self.bench = WriterBench(root, small(), host=lambda host: Judged(host, self), inline=True)
        self.happened: list[str] = []

    def types_in_use(self) -> dict[str, int]:
        """The type of each function that somebody has."""
        return {one: self.bench.type_of(one) for one in self.open}

    def something_happens(self, often: float = 0.4) -> None:
        """Between two changes: users come and go, somebody types a function by hand."""
        if self.random.random() < often:
            self.random.choice((self.somebody_opens, self.somebody_opens, self.somebody_closes, self.somebody_types))()

    def may_open_late(self, function: str) -> None:
        """Somebody comes after the writer has looked: then it is the kernel that refuses."""
        if self.random.random() < 0.05 and self.bench.type_of(function):
            self._open(function)

    def somebody_opens(self) -> None:
        typed = sorted(set(self.bench.profiles()) - self.open)
        if typed:
            self._open(self.random.choice(typed))

    def _open(self, function: str) -> None:
        self.bench.kernel.open_device(self.bench.group(function))
        self.open.add(function)
        self.happened.append(f"open {function}")

    def somebody_closes(self) -> None:
        if self.open:
            self.close(self.random.choice(sorted(self.open)))

    def close(self, function: str) -> None:
        self.open.discard(function)
        self.bench.kernel.close_device(self.bench.group(function))
        self.happened.append(f"close {function}")

    def somebody_types(self) -> None:
        functions = self.bench.functions()
        if functions and self.random.random() < 0.3:
            function, number = self.random.choice(functions), self.random.choice((0, *TYPES.values()))
            with suppress(OSError):
                self.bench.set_type(function, number)
            self.happened.append(f"{function} becomes {number} by hand")

    def order(self) -> dict[str, int]:
        layout = self.random.choice(LAYOUTS)
        unassigned = self.random.choice(("Leave", "Clear"))
        self.bench.order(carries(layout, unassigned=unassigned))
        self.happened.append(f"ordered {layout}, {unassigned}")
        return layout

    def boot(self) -> None:
        self.open.clear()
        self.bench.kernel.reboot()
        self.bench.restart()
        self.happened.append("boot")

    def reload(self) -> None:
        if not self.open:
            self.bench.kernel.reload_driver("nvidia")
            self.happened.append("the driver is loaded anew")

    async def round(self) -> None:
        """Something may happen to the whole node, then the writer makes a pass."""
        happens: tuple[tuple[float, Callable[[], object]], ...] = (
            (0.4, self.order),
            (0.05, self.boot),
            (0.05, self.reload),
            (0.1, self.bench.restart),
        )
        for chance, event in happens:
            if self.random.random() < chance:
                event()
        self.something_happens(0.5)
        self.bench.clock.advance(600)
        await self.bench.run()

    async def ends_as_ordered(self) -> None:
        """Everybody has gone."""
        for function in sorted(self.open):
            self.close(function)
        self.bench.restart(self.bench.kernel.host())
        layout = self.random.choice(LAYOUTS)
        self.bench.order(carries(layout, unassigned="Clear"))
        done = await self.bench.settled()
        # A card that somebody has typed by hand before its first whole list was read: nothing on the host tells what it
        # has, or what else it could have, and it is left alone until he takes that back.
        unknown = [one.address for one in card_of(done).vgpus if one.reason == "TypeUnknown"]
        if stand(done)[1] == "ProfileUnknown":
            unknown = list(self.bench.profiles())
        for function in unknown:
            self.bench.set_type(function, 0)
        done = await self.bench.settled() if unknown else done
        wanted = sorted(profile for profile, count in layout.items() for _ in range(count))
        assert stand(done)[0] == "Ready", (layout, done.profiles, self.happened[-30:])
        assert sorted(self.bench.profiles().values()) == wanted


def test_nobody_loses_a_vgpu_and_in_the_end_all_is_as_ordered() -> None:
    async def live(seed: int, rounds: int) -> None:
        root = Path(tempfile.mkdtemp(prefix="writer-"))
        node = Node(root, seed)
        try:
            node.order()
            for _ in range(rounds):
                await node.round()
                examples.one()
            await node.ends_as_ordered()
        except AssertionError as error:
            raise AssertionError(f"node {seed}: {error}; {node.happened[-30:]}") from error
        finally:
            node.bench.close()
            shutil.rmtree(root, ignore_errors=True)

    with at_least(ROUNDS, "passes among users, foreign writes, boots and loads of the driver") as examples:
        for seed in range(ROUNDS // ROUNDS_OF_A_NODE):
            asyncio.run(live(seed, ROUNDS_OF_A_NODE))
