"""A device that pods may have is changed only after the publisher has handed it over, for the very orders of now."""

from collections.abc import Callable
from typing import Any

import pytest

from node_host.acting.locks import Locks
from node_host.handover.entry import entry_digest
from node_host.handover.publisher_half import PublisherHalf
from node_host.handover.token_files import HANDOVER
from node_host.handover.tokens import WAITS
from node_host.host import Host
from simulated_node.description import HostDescription
from simulated_node.in_process import InProcessHost
from tests.builders.binder import NPU, TWIN, Bench, audio, graphics, host, npu, order, report_of, spec, verdict
from tests.builders.fault_scenes import AUDIO, CARD, SRIOV_CARD, card, functions_of, sriov_card

Make = Callable[..., Bench]
FIRST, SECOND = "0000:61:10.0", "0000:61:10.2"
LOADED = [{"name": "vfio_pci", "state": "Loaded"}]


def publisher(bench: Bench, *addresses: str) -> PublisherHalf:
    """The publisher's half, which has noted that these are offered to pods."""
    half = PublisherHalf(bench.kernel.host())
    half.write_published(addresses, bench.kernel.boot_id)
    return half


def digest(entry: dict[str, Any]) -> str:
    return entry_digest(spec(entry).devices[0])


def hand_over(bench: Bench, half: PublisherHalf, entry: dict[str, Any], *addresses: str) -> None:
    for address in addresses or (entry["address"],):
        half.offer(address, bench.kernel.boot_id, digest(entry))


def files(bench: Bench) -> list[str]:
    place = bench.kernel.host().local(HANDOVER)
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


async def refused(bench: Bench, address: str = NPU, *, message: str = WAITS) -> None:
    bench.mark()
    done = await bench.run()
    assert verdict(done, address) == ("Blocked", "Published")
    assert message in report_of(done, address).message
    assert bench.writes == []


async def test_it_waits_for_its_token_and_keeps_it_while_it_works(make: Make) -> None:
    bench = make(host(npu()))
    half = publisher(bench, NPU)
    bench.order(order())
    await refused(bench)
    hand_over(bench, half, order())
    assert verdict(await bench.run()) == ("Ready", "Bound")
    assert files(bench) == [f"{NPU}.taken"]
    assert half.prepare_refused(NPU) is not None


async def test_a_device_that_is_not_listed_needs_no_token(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    publisher(bench, TWIN)
    bench.order(order(), order(TWIN))
    done = await bench.run()
    assert verdict(done) == ("Ready", "Bound")
    assert verdict(done, TWIN) == ("Blocked", "Published")
    assert bench.touched() == {NPU}


@pytest.mark.parametrize(
    "other",
    [order(companions="Bind"), order(mode="Container"), order(intent="Hold"), order(on_release="Leave")],
    ids=["settings", "mode", "intent", "release"],
)
async def test_a_token_for_other_orders_is_left_where_it_is(make: Make, other: dict[str, Any]) -> None:
    bench = make(host(npu()))
    half = publisher(bench, NPU)
    hand_over(bench, half, other)
    bench.order(order())
    await refused(bench)
    assert files(bench) == [f"{NPU}.json"]


async def test_a_taken_token_of_the_orders_before_opens_nothing(make: Make) -> None:
    bench = make(host(npu()))
    half = publisher(bench, NPU)
    bench.order(order())
    hand_over(bench, half, order())
    await bench.run()
    release = order(intent="Release")
    bench.order(release)
    await refused(bench)
    half.renew(NPU, bench.kernel.boot_id, digest(release), locks=["group-20"])
    assert verdict(await bench.run()) == ("Released", "Released")
    assert bench.driver() == "rebellions"


async def test_nothing_is_taken_while_there_is_nothing_to_do(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    half = publisher(bench, NPU, TWIN)
    held, native = order(intent="Hold"), order(TWIN, mode="Container")
    hand_over(bench, half, held)
    hand_over(bench, half, native)
    bench.order(held, native)
    done = await bench.run()
    assert (verdict(done), verdict(done, TWIN)) == (("Pending", "Held"), ("Ready", "NativeDriver"))
    assert files(bench) == [f"{NPU}.json", f"{TWIN}.json"]
    assert bench.writes == []


async def test_who_opened_the_device_after_the_token_was_written_keeps_it(make: Make) -> None:
    bench = make(host(npu()))
    half = publisher(bench, NPU)
    hand_over(bench, half, order())
    bench.kernel.open_device("/dev/rbln0", pid=77, comm="python3", pod_uid="3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10")
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Blocked", "InUse")
    assert bench.writes == []
    assert files(bench) == [f"{NPU}.json"]
    (user,) = done.inventory.devices[0].used_by
    assert (user.name, user.pod_uid) == ("python3", "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10")


class _OpenedAtTheRename(InProcessHost):
    """Somebody opens the device in the moment in which the token is taken."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.kernel)
        self._bench = bench

    def list(self, path: str) -> list[str]:
        if path == "/proc" and files(self._bench) == [f"{NPU}.taken"]:
            self._bench.kernel.open_device("/dev/rbln0", pid=77, comm="python3")
        return super().list(path)


async def test_use_is_looked_at_again_after_the_token_was_taken(make: Make) -> None:
    bench = make(host(npu()))
    half = publisher(bench, NPU)
    hand_over(bench, half, order())
    bench.restart(host=_OpenedAtTheRename(bench))
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Blocked", "InUse")
    assert bench.sysfs_writes == []
    assert files(bench) == [f"{NPU}.taken"], "held, as it is no longer the publisher's to withdraw"


async def test_a_restarted_binder_goes_on_with_the_token_that_it_had_taken(make: Make) -> None:
    bench = make(host(npu()))
    half = publisher(bench, NPU)
    hand_over(bench, half, order())
    bench.order(order())
    bench.kernel.fail_next("probe:vfio-pci:*", "EIO", times=2)
    assert (await bench.run()).bindings.devices[0].state == "Failed"
    bench.restart()
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_tokens_of_another_boot_are_cleaned(make: Make) -> None:
    bench = make(host(npu()))
    half = publisher(bench, NPU)
    half.offer(NPU, "0b5c8f6e-0f57-4b1e-9d5e-7a0c4f1b2d3e", digest(order()))
    bench.order(order())
    await refused(bench)
    assert files(bench) == []
    half.offer(NPU, "0b5c8f6e-0f57-4b1e-9d5e-7a0c4f1b2d3e", digest(order()))
    with Locks(bench.host, ["group-20"], owner="another"):
        await bench.run()
        assert files(bench) == [f"{NPU}.json"], "under the locks alone"


@pytest.mark.parametrize("spoilt", ["json", "taken"])
async def test_a_token_that_cannot_be_read_opens_nothing(make: Make, spoilt: str) -> None:
    bench = make(host(npu()))
    half = publisher(bench, NPU)
    hand_over(bench, half, order())
    (bench.kernel.host().local(HANDOVER) / f"{NPU}.{spoilt}").write_text("{")
    bench.order(order())
    await refused(bench, message=f"whether it was handed over cannot be read: {HANDOVER}/{NPU}.{spoilt}")


GROUP = (graphics(), audio())


async def test_a_companion_that_pods_may_have_needs_a_token_of_its_own_for_the_entry_that_needs_it(make: Make) -> None:
    bench = make(host(*GROUP))
    wanted = card(companions="Bind")
    half = publisher(bench, CARD, AUDIO)
    hand_over(bench, half, wanted, CARD)
    bench.order(wanted)
    await refused(bench, CARD, message=f"{AUDIO} of its IOMMU group: {WAITS}")
    assert files(bench) == [f"{CARD}.json"]
    hand_over(bench, half, wanted, AUDIO)
    assert verdict(await bench.run(), CARD) == ("Ready", "Bound")
    assert files(bench) == [f"{CARD}.taken", f"{AUDIO}.taken"]
    release = card(intent="Release")
    bench.order(release)
    await refused(bench, CARD)
    for address in (CARD, AUDIO):
        half.renew(address, bench.kernel.boot_id, digest(release), locks=["group-24"])
    await bench.run()
    assert (bench.driver(CARD), bench.driver(AUDIO)) == ("nvidia", "snd_hda_intel")


async def test_what_is_on_vfio_in_the_same_group_goes_along_and_needs_a_token_too(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 20)))
    both = (order(), order(TWIN))
    bench.order(*both)
    await bench.run()
    half = publisher(bench, TWIN)
    back = order(mode="Container")
    bench.order(back, order(TWIN))
    await refused(bench, message=f"{TWIN}, which goes along: {WAITS}")
    hand_over(bench, half, order(TWIN))
    await bench.run()
    assert bench.driver() == "rebellions"
    assert files(bench) == [f"{TWIN}.taken"]


async def test_functions_are_handed_over_for_the_entry_of_their_card(make: Make) -> None:
    bench = make(host(sriov_card(), modules=LOADED))
    bench.order(functions_of(2))
    await bench.run()
    half = publisher(bench, FIRST, SECOND)
    fewer = functions_of(1)
    bench.order(fewer)
    await refused(bench, SRIOV_CARD, message=f"{FIRST}, which goes along: {WAITS}")
    hand_over(bench, half, fewer, FIRST)
    await refused(bench, SRIOV_CARD, message=f"{SECOND}, which goes along: {WAITS}")
    assert files(bench) == [f"{FIRST}.json"]
    hand_over(bench, half, fewer, SECOND)
    done = await bench.run()
    assert verdict(done, SRIOV_CARD) == ("Ready", "FunctionsBound")
    assert files(bench) == [f"{FIRST}.taken", f"{SECOND}.taken"]


async def test_a_card_that_pods_may_have_itself_needs_one_before_functions_are_made(make: Make) -> None:
    bench = make(host(sriov_card(), modules=LOADED))
    half = publisher(bench, SRIOV_CARD)
    bench.order(functions_of(2))
    await refused(bench, SRIOV_CARD)
    hand_over(bench, half, functions_of(2))
    done = await bench.run()
    assert verdict(done, SRIOV_CARD) == ("Ready", "FunctionsBound")
    assert files(bench) == [f"{SRIOV_CARD}.taken"]


async def test_a_device_that_comes_onto_the_list_after_the_plan_is_not_changed(make: Make) -> None:
    bench = make(host(npu()))

    class ListedLate(InProcessHost):
        looks = 0

        def list(self, path: str) -> list[str]:
            if path == "/proc":
                self.looks += 1
                if self.looks == 2:  # the look under the locks; the note itself is written without them here
                    publisher(bench, NPU)
            return super().list(path)

    late: Host = ListedLate(bench.kernel)
    bench.restart(host=late)
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Blocked", "Published")
    assert bench.sysfs_writes == []


def description() -> HostDescription:
    return host(npu(), npu(TWIN, 21))


async def test_a_dry_run_takes_no_token(make: Make) -> None:
    bench = make(description())
    half = publisher(bench, NPU)
    hand_over(bench, half, order())
    bench.order(order())
    assert not (await bench.binder.dry_run(bench.orders)).planned.is_empty
    assert files(bench) == [f"{NPU}.json"]
