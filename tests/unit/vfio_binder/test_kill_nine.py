"""A binder that is killed while a write of it is in the kernel: what it began ends, and the next one goes on."""

from collections.abc import Iterator

import pytest

from node_host.acting.journal import JOURNAL, Journal
from node_host.handover.entry import entry_digest
from node_host.handover.publisher_half import PublisherHalf
from node_host.host import open_host
from node_host.pci.device import DEVICES, DRIVERS, DRIVERS_PROBE
from tests.builders.binder import audio, graphics, host, order, spec
from tests.builders.binder_process import Machine

CARD, AUDIO = "0000:25:00.0", "0000:25:00.1"
NATIVE = {CARD: "nvidia", AUDIO: "snd_hda_intel"}
BIND = order(CARD, vendor="10de", device="26b1", companions="Bind")
RELEASE = order(CARD, vendor="10de", device="26b1", intent="Release")
# Every write in its order. A path that comes twice is told apart by what has to be past before.
BIND_WRITES = (
    (f"{DEVICES}/{AUDIO}/driver_override", None),
    (f"{DRIVERS}/snd_hda_intel/unbind", None),
    (DRIVERS_PROBE, None),
    (f"{DEVICES}/{CARD}/driver_override", None),
    (f"{DRIVERS}/nvidia/unbind", None),
    (DRIVERS_PROBE, f"{DRIVERS}/nvidia/unbind"),
)
RETURN_WRITES = (
    (f"{DEVICES}/{CARD}/driver_override", None),
    (f"{DRIVERS}/vfio-pci/unbind", None),
    (DRIVERS_PROBE, None),
    (f"{DEVICES}/{AUDIO}/driver_override", None),
    (f"{DRIVERS}/vfio-pci/unbind", f"{DEVICES}/{AUDIO}/driver_override"),
    (DRIVERS_PROBE, f"{DEVICES}/{AUDIO}/driver_override"),
)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    description = host(graphics(), audio()).model_dump(mode="json", by_alias=True, exclude_none=True)
    made = Machine(tmp_path_factory.mktemp("machine"), description)
    yield made
    made.stop()


def drivers(machine: Machine) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for address in NATIVE:
        link = machine.root / f"{DEVICES[1:]}/{address}/driver"
        found[address] = link.readlink().name if link.is_symlink() else None
    return found


def killed_at(machine: Machine, entry: dict[str, object], path: str, after: str | None) -> None:
    """Start a binder, wait until its write sleeps in the kernel, kill it, and let the kernel go on."""
    first = machine.control.block(after) if after else None
    block = None if after else machine.control.block(path)
    process = machine.start("--once", entries=[entry])
    try:
        if first is not None:
            assert first.wait_until_blocked(30)
            block = machine.control.block(path)
            first.release()
        assert block is not None
        assert block.wait_until_blocked(30)
    finally:
        process.kill()
        process.wait(20)
    assert "Failed  WriteStuck: group-24 is locked by npufleet-vfio-binder (pid " in machine.passes(entry)
    entries = Journal(machine.root / JOURNAL[1:]).load(set_aside=False).entries
    for address, driver in drivers(machine).items():
        if driver != NATIVE[address]:
            assert entries[address].former_driver == NATIVE[address]
    block.release()
    assert machine.control.wait_until(lambda: not machine.control.sleeping, 20)


def goes_on(machine: Machine, entry: dict[str, object], ends: dict[str, str]) -> None:
    def is_done() -> bool:
        # The child that did the write may hold the lock of the group for a moment longer.
        return machine.binder("--once", entries=[entry]).returncode == 0

    assert machine.control.wait_until(is_done, 30)
    assert drivers(machine) == ends
    written = len(machine.control.writes)
    assert machine.passes(entry).startswith("Plan: nothing to do\n")
    assert len(machine.control.writes) == written


@pytest.mark.parametrize("number", range(len(BIND_WRITES)))
def test_killed_in_any_write_of_a_bind_the_next_process_finishes(machine: Machine, number: int) -> None:
    machine.passes(RELEASE)
    assert drivers(machine) == NATIVE
    killed_at(machine, BIND, *BIND_WRITES[number])
    goes_on(machine, BIND, dict.fromkeys(NATIVE, "vfio-pci"))


@pytest.mark.parametrize("number", range(len(RETURN_WRITES)))
def test_killed_in_any_write_of_a_return_the_next_process_finishes(machine: Machine, number: int) -> None:
    machine.passes(BIND)
    assert set(drivers(machine).values()) == {"vfio-pci"}
    killed_at(machine, RELEASE, *RETURN_WRITES[number])
    goes_on(machine, RELEASE, NATIVE)
    assert Journal(machine.root / JOURNAL[1:]).load(set_aside=False).entries == {}


def test_killed_with_a_token_in_its_hands_the_next_process_finds_it_again(machine: Machine) -> None:
    machine.passes(RELEASE)
    host = open_host(machine.root)
    publisher, boot_id = PublisherHalf(host), machine.control.boot_id
    publisher.write_published(NATIVE, boot_id)
    digest = entry_digest(spec(BIND).devices[0])
    for address in NATIVE:
        publisher.offer(address, boot_id, digest)
    killed_at(machine, BIND, *BIND_WRITES[0])
    for address in NATIVE:
        assert not publisher.withdraw(address)
        assert publisher.prepare_refused(address) is not None
    goes_on(machine, BIND, dict.fromkeys(NATIVE, "vfio-pci"))
    for address in NATIVE:
        publisher.finish(address, locks=["group-24"])
    publisher.write_published([], boot_id)
