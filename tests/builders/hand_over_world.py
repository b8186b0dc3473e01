"""One node on which orders change, pods come and go, and binder and publisher are killed, all at random.

Between any two steps of the binder (a plan, a token, a change of the journal, a write to the kernel) or of the
publisher the rest of the world may act. At each write of the binder it is looked up, in the world and not in what the
binder believes, whether somebody has the device.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from crds.device_names import NamedKind
from crds.models.node_state import DeviceReport, DeviceState, NodeStateStatus
from dra_publisher.handover.hand_over import is_withheld
from dra_publisher.offers.offer import Offer
from node_host.acting.journal import JOURNAL, Journal, JournalEntry
from node_host.evidence.checkpoint import PreparedClaim
from node_host.evidence.publication import read_published
from node_host.handover.binder_half import BinderHalf
from node_host.handover.token_files import TokenFiles
from node_host.host import Host
from node_host.orders import Orders
from node_host.pci.vfio_drivers import is_vfio_driver
from simulated_node.in_process import InProcessHost
from simulated_node.kernel import SimulatedKernel
from tests.builders.checkpoints import claim as claim_of
from tests.builders.hand_over_machines import Entry, Machine
from tests.builders.inline import InlineWriter
from tests.builders.staged_publisher import StagedPublisher
from tests.builders.strikes import Crash
from vfio_binder.binder import Pass

# Nothing is written to the card by it that anybody has: it is for functions that somebody makes later.
_HARMLESS = "sriov_drivers_autoprobe"


class _Host(InProcessHost):
    """The binder's port: each write is a step."""

    def __init__(self, world: World) -> None:
        super().__init__(world.kernel)
        self._world = world

    def write(self, path: str, data: bytes) -> None:
        self._world.step("binder", f"write {path}")
        self._world.check_write(path, data)
        super().write(path, data)
        self._world.step("binder", f"wrote {path}")


class _Journal(Journal):
    def __init__(self, path: Path, world: World) -> None:
        super().__init__(path)
        self._world = world

    def _change(self, change: Callable[[dict[str, JournalEntry]], object]) -> None:
        self._world.step("binder", "journal")
        super()._change(change)
        self._world.step("binder", "journal written")


class _Tokens(TokenFiles):
    def __init__(self, port: Host, world: World) -> None:
        super().__init__(port)
        self._world = world

    def rename(self, name: str, new_name: str) -> bool:
        # A user may come up to the moment in which the token is taken: use is looked at again after it.
        self._world.step("binder", f"take {name}", strangers=True)
        found = super().rename(name, new_name)
        self._world.step("binder", f"took {name}", strangers=True)
        return found


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class InUseError(AssertionError):
    """A device that somebody has was written to."""


class NotArrivedError(AssertionError):
    """All is quiet, and something is not as ordered."""


@dataclass
class World:
    """One episode on a machine. ``seen`` counts what happened in it."""

    machine: Machine
    random: Random
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.machine.reset()
        self.bench = self.machine.bench
        self.kernel: SimulatedKernel = self.bench.kernel
        self.loop = asyncio.new_event_loop()
        self.slices: dict[str, Offer] = {}
        self.claims: dict[str, str] = {}  # by device, the boot in which it was allocated
        self.opened: dict[str, str] = {}  # the node by device
        self.entries: dict[str, Entry] = {}
        self.quiet = False
        self._older = self._read = self.bench.orders
        self.faults: list[str] = []
        self._inside = 0
        self._in_binder = False
        self._dies_in: dict[str, int | None] = {"binder": None, "publisher": None}
        self._restart_binder()
        self._restart_publisher()

    def close(self) -> None:
        self.loop.close()

    # What happens.

    def live(self, acts: int) -> None:
        """Random things, so many of them; mostly from a node on which devices are published already."""
        if self.random.random() < 0.8:
            self.quiet = True
            for _ in self.machine.layout.orders:
                self._orders()
            self.binder_pass()
            self.look()
            self.quiet = False
        for _ in range(acts):
            self.act()

    def act(self) -> None:
        """One thing, and what must hold afterwards."""
        kinds = (self._orders, self._binder, self._publisher, self._user, self._stranger, self._reboot)
        self.random.choices(kinds, weights=(3, 5, 5, 6, 1, 0.5))[0]()
        self.refuse_faults()

    def refuse_faults(self) -> None:
        """Raise InUseError when a write of the binder was to something that somebody had."""
        if self.faults:
            # Not where it is found: a binder makes an outcome of what a write raises.
            raise InUseError("; ".join(self.faults))

    def step(self, who: str, what: str, *, strangers: bool = False) -> None:
        """Between two steps of the binder or the publisher: the world acts, or the process dies."""
        left = self._dies_in[who]
        if left is not None:
            self._dies_in[who] = left - 1
            if left <= 0:
                self.seen[f"{who} killed"] += 1
                raise Crash
        if self.quiet or self._inside >= 2 or self.random.random() > 0.3:
            return
        self._inside += 1
        try:
            kinds = [self._orders, self._user, self._user]
            if strangers:
                kinds.append(self._stranger)
            if who == "binder":
                kinds.append(self._publisher)
            elif not self._in_binder:
                kinds.append(self._binder)
            self.random.choice(kinds)()
        finally:
            self._inside -= 1

    def _orders(self) -> None:
        address = self.random.choice(sorted(self.machine.layout.orders))
        self.entries[address] = self.random.choice(self.machine.layout.orders[address])
        self.order()

    def order(self, *entries: Entry) -> None:
        """New orders; without any the present ones once more, of a new generation."""
        self.entries = {entry["address"]: entry for entry in entries} or self.entries
        self._older = self.bench.orders
        self.bench.order(*(self.entries[address] for address in sorted(self.entries)))

    def _binder(self) -> None:
        self._dies_in["binder"] = None
        if not self.quiet and self.random.random() < 0.5:
            self._dies_in["binder"] = self.random.randrange(10)
        try:
            self.binder_pass()
        except Crash:
            # What the process had still before it is never begun.
            self.loop.run_until_complete(_end(asyncio.all_tasks(self.loop)))
            self._restart_binder()

    def binder_pass(self) -> Pass | None:
        """One pass; None without orders."""
        orders = self.bench.orders
        if orders.spec is None:
            return None
        self._in_binder = True
        try:
            return self.loop.run_until_complete(self._pass(orders))
        finally:
            self._in_binder = False

    async def _pass(self, orders: Orders) -> Pass:
        async def progress(_: Pass) -> None:
            self.step("binder", "planned", strangers=True)

        now = Orders(orders.spec, orders.node_uid, orders.generation, self.bench.status)
        done = await self.bench.binder.run(now, progress=progress)
        self.bench.status = NodeStateStatus(inventory=done.inventory, bindings=done.bindings)
        self.seen["changed"] += sum(outcome.result == "Done" for outcome in done.outcomes)
        return done

    def _restart_binder(self) -> None:
        port = _Host(self)
        journal = _Journal(self.kernel.host().local(JOURNAL), self)
        tokens = BinderHalf(_Tokens(port, self))
        self.bench.restart(writer=InlineWriter(port), host=port, journal=journal, tokens=tokens)

    def _publisher(self) -> None:
        self._dies_in["publisher"] = None
        if not self.quiet and self.random.random() < 0.5:
            self._dies_in["publisher"] = self.random.randrange(2)
        try:
            self.look()
        except Crash:
            self._restart_publisher()

    def look(self) -> None:
        """One look of the publisher, at the orders of now, or at those before: its cache may be behind the binder's."""
        is_behind = not self.quiet and self.random.random() < 0.3
        self._read = self._older if is_behind and self._older.spec is not None else self.bench.orders
        if self._read.spec is not None:
            self.publisher.look(self._read.spec.devices)

    def kill_publisher(self, *, after: int) -> None:
        """It dies in its next look, after so many steps."""
        self._dies_in["publisher"] = after
        try:
            self.look()
        except Crash:
            self._dies_in["publisher"] = None
            self._restart_publisher()
        else:
            raise AssertionError(f"the look had less than {after + 1} steps")

    def _restart_publisher(self) -> None:
        self.publisher = StagedPublisher(
            self.kernel.host(),
            self.slices,
            lambda: self.claims.keys(),
            said=self._said,
            step=lambda what: self.step("publisher", what),
        )
        self.publisher.start()

    def _said(self) -> dict[str, DeviceReport]:
        bindings = self.bench.status.bindings
        if bindings is None or bindings.observed_generation != self._read.generation:
            return {}
        return {one.address: one for one in bindings.devices} if bindings.boot_id == self.kernel.boot_id else {}

    def _user(self) -> None:
        """A pod goes one step further, or one step back."""
        free = [one for one, offer in self.slices.items() if not is_withheld(offer) and one not in self.claims]
        steps: list[Callable[[], None]] = [self._allocate(one) for one in free]
        for address in self.claims:
            if address in self.opened:
                steps.append(self._close(address))
            elif self._is_prepared(address):
                steps += [self._open(address), self._unprepare(address)]
            elif address in self.prepared():
                steps += [self._prepare(address), self._unprepare(address)]
            else:
                steps += [self._prepare(address), self._free(address)]
        if steps:
            self.random.choice(steps)()
            if self.random.random() < 0.6:
                self._user()

    def _allocate(self, address: str) -> Callable[[], None]:
        def act() -> None:
            self.claims[address] = self.kernel.boot_id
            self.seen["allocated"] += 1

        return act

    def prepared(self) -> Mapping[str, PreparedClaim]:
        """What the checkpoint has, by device, of whatever boot."""
        return {one.devices[0].address: one for one in self.publisher.ledger.store.checkpoint().claims.values()}

    def _is_prepared(self, address: str) -> bool:
        """In this boot: its pod may start."""
        claim = self.prepared().get(address)
        return claim is not None and claim.boot_id == self.kernel.boot_id

    def _keep(self, claims: Mapping[str, PreparedClaim]) -> None:
        store = self.publisher.ledger.store
        store.write(replace(store.checkpoint(), claims={one.uid: one for one in claims.values()}))

    def _prepare(self, address: str) -> Callable[[], None]:
        """For the first time as it is offered; after a reboot once more, as it was then."""

        def act() -> None:
            before = self.prepared().get(address)
            shape = self.publisher.prepared_as(address, before.devices[0].shape if before is not None else None)
            if shape is not None:
                made = claim_of({address: shape}, boot_id=self.kernel.boot_id, name=f"of-{address}")
                self._keep({**self.prepared(), address: made})

        return act

    def _open(self, address: str) -> Callable[[], None]:
        return lambda: self._opens(address, "pod")

    def _opens(self, address: str, who: str) -> None:
        device = self.kernel._machine.devices.get(address)
        if device is None or address in self.opened:
            return
        node = (
            f"vfio/{device.group}" if is_vfio_driver(device.driver) else next((node.name for node in device.nodes), "")
        )
        with suppress(OSError):
            self.kernel.open_device(f"/dev/{node}", pid=4000 + len(self.opened) + self.seen["opened"], comm=who)
            self.opened[address] = node
            self.seen["opened"] += 1

    def _close(self, address: str) -> Callable[[], None]:
        def act() -> None:
            self.kernel.close_device(f"/dev/{self.opened.pop(address)}")

        return act

    def _unprepare(self, address: str) -> Callable[[], None]:
        def act() -> None:
            self._keep({one: claim for one, claim in self.prepared().items() if one != address})

        return act

    def _free(self, address: str) -> Callable[[], None]:
        def act() -> None:
            del self.claims[address]

        return act

    def _stranger(self) -> None:
        """A process of the host, without a claim, opens a device or lets it go."""
        mine = [one for one in self.opened if one not in self.claims]
        if mine and (self.quiet or self.random.random() < 0.6):
            self._close(self.random.choice(mine))()
            return
        self._opens(self.random.choice(sorted(self.kernel._machine.devices)), "stranger")

    def _reboot(self) -> None:
        """Handles are gone, the kubelet takes away the slices of its node; allocated claims stay."""
        if self._inside:
            return
        self.kernel.reboot()
        self.seen["reboots"] += 1
        self.opened.clear()
        self.slices.clear()
        self._restart_binder()
        self._restart_publisher()

    # What must hold.

    def check_write(self, path: str, data: bytes) -> None:
        """Nobody has what is written to, a function of it, or what is on VFIO beside it."""
        owner, _, attribute = path.rpartition("/")
        if attribute == _HARMLESS:
            return
        address = (
            data.decode().strip() if attribute in ("bind", "unbind", "drivers_probe") else owner.rpartition("/")[2]
        )
        self.seen["writes"] += 1
        for one in self._concerned(address):
            if one in self.opened:
                self.faults.append(f"{path} was written while {one} is open")
            if self._is_claimed(one):
                self.faults.append(f"{path} was written while {one} is allocated to a claim")

    def _concerned(self, address: str) -> set[str]:
        devices = self.kernel._machine.devices
        own = {address, *(one for one, device in devices.items() if device.physfn == address)}
        groups = {devices[one].group for one in own if one in devices} - {None}
        beside = {one for one, device in devices.items() if device.group in groups and is_vfio_driver(device.driver)}
        return own | beside

    def _is_claimed(self, address: str) -> bool:
        """Of a claim from before this boot the host knows only once the device is listed again."""
        boot_id = self.claims.get(address)
        if boot_id is None:
            return False
        return (
            boot_id == self.kernel.boot_id
            or address in read_published(self.kernel.host(), self.kernel.boot_id).addresses
        )

    def settle(self) -> None:
        """Users go, nobody is killed, orders stay; then everything gets to its orders and is published so."""
        self.quiet = True
        self._dies_in = {"binder": None, "publisher": None}
        for address in sorted(self.opened):
            self._close(address)()
        self._keep({})
        self.claims.clear()
        while not self.machine.layout.fits(self.entries):
            for address, choices in self.machine.layout.orders.items():
                self.entries[address] = self.random.choice(choices)
        self.order()
        done = None
        for _ in range(10):  # the longest way: withhold, offer, take, change, publish
            self.bench.clock.advance(400)
            done = self.binder_pass()
            before = dict(self.slices)
            self.look()
            if done is not None and done.left.is_empty and before == self.slices and self._has_arrived(done):
                break
            self.refuse_faults()
        if done is None or not self._has_arrived(done):
            reports = [] if done is None else [str(one) for one in done.bindings.devices]
            raise NotArrivedError(f"{reports}, slices {self.slices}")
        for address, offer in self.slices.items():
            if not is_withheld(offer) and self.publisher.prepare_refused(address) is not None:
                raise NotArrivedError(f"{address} is offered: {self.publisher.prepare_refused(address)}")

    def _has_arrived(self, done: Pass) -> bool:
        reports = {one.address: one for one in done.bindings.devices}
        for address, entry in self.entries.items():
            wanted = {"Apply": DeviceState.READY, "Release": DeviceState.RELEASED}.get(entry["intent"])
            if wanted is not None and reports[address].state is not wanted:
                return False
            if wanted is DeviceState.READY and not self._is_published(address, entry):
                return False
        return True

    def _is_published(self, address: str, entry: Entry) -> bool:
        if "virtualFunctions" in entry.get("passthrough", {}):
            devices = self.kernel._machine.devices
            functions = [one for one, device in devices.items() if device.physfn == address]
            return all(self._is_offered(one, NamedKind.VFIO) for one in functions)
        return self._is_offered(address, NamedKind.VFIO if entry["mode"] == "Passthrough" else NamedKind.NPU)

    def _is_offered(self, address: str, kind: NamedKind) -> bool:
        offer = self.slices.get(address)
        return offer is not None and offer.kind is kind and not is_withheld(offer)
