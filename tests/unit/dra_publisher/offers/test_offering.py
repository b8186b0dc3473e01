"""What is said of a device, and which devices are not offered although somebody ordered it."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crds.catalogue import load_catalogue
from crds.models.modes import Mode
from crds.models.node_state import DesiredDevice
from dra_publisher.offers.offer import Offer, Taint, TaintKey
from dra_publisher.offers.offering import offer_of
from dra_publisher.offers.prerequisites import RECIPES, prerequisites, recipe
from dra_publisher.slices.device import device_of, offer_from_device
from simulated_node.description import HostDescription
from simulated_node.description_files import load_description
from tests.builders.binder import NPU, TWIN, Bench, audio, graphics, host, npu, order
from tests.builders.offers import REBELLIONS, bound_offers, entry, view_of

Make = Callable[..., Bench]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    benches: list[Bench] = []

    def build(description: HostDescription) -> Bench:
        benches.append(Bench(tmp_path / f"host{len(benches)}", description))
        return benches[-1]

    yield build
    for bench in benches:
        bench.close()


async def offered(bench: Bench, ordered: DesiredDevice, address: str | None = None, **more: Any) -> Offer | str:
    return offer_of(ordered, address or ordered.address, await view_of(bench), load_catalogue(), **more)


async def bound(bench: Bench, *orders: dict[str, Any]) -> None:
    bench.order(*orders)
    await bench.run()


def good(found: Offer | str) -> Offer:
    assert isinstance(found, Offer), found
    return found


async def test_attributes_are_those_of_the_documentation_type_by_type(tmp_path: Path) -> None:
    (found,) = await bound_offers(tmp_path, load_description("node-rebel100"), "1eff:2130")
    assert found.driver == REBELLIONS
    assert device_of(found) == {
        "name": "vfio-0000-27-00-0",
        "attributes": {
            "type": {"string": "vfio"},
            "iommuGroup": {"int": 42},
            "pciDeviceID": {"string": "2130"},
            "productName": {"string": "RBLN-CR13"},
            "vf": {"bool": False},
            "groupViability": {"string": "Viable"},
            "numaNode": {"int": 0},
            "resource.kubernetes.io/pciBusID": {"string": "0000:27:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:20"},
            "resource.kubernetes.io/numaNode": {"int": 0},
            "dra.net/numaNode": {"int": 0},
        },
    }


async def test_sixteen_devices_are_sixteen_offers_in_the_order_of_their_addresses(tmp_path: Path) -> None:
    found = await bound_offers(tmp_path, load_description("node-atom"), "1eff:1250")
    assert len(found) == 16
    assert found[0].name == "vfio-0000-23-00-0"
    assert [one.name for one in found] == sorted(one.name for one in found)
    assert {one.attributes["productName"] for one in found} == {"RBLN-CA25"}
    assert [one.attributes["resource.kubernetes.io/numaNode"] for one in found] == [0] * 8 + [1] * 8


async def test_t21_no_device_of_a_shared_group_is_lost_and_each_tells_its_group(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 20), npu("0000:28:00.0", 22)))
    await bound(bench, order(companions="Bind"), order(TWIN, companions="Bind"), order("0000:28:00.0"))
    view = await view_of(bench)
    found = [good(offer_of(entry(one), one, view, load_catalogue())) for one in (NPU, TWIN, "0000:28:00.0")]
    assert [one.attributes["iommuGroup"] for one in found] == [20, 20, 22]
    assert len({one.name for one in found}) == 3


async def test_an_unknown_numa_node_is_left_out_under_all_names(make: Make) -> None:
    bench = make(host(npu(numaNode=-1)))
    await bound(bench, order())
    names = good(await offered(bench, entry(NPU))).attributes
    assert not [name for name in names if name.endswith("numaNode")]


async def test_a_product_that_the_catalogue_does_not_know_has_no_name(make: Make) -> None:
    bench = make(host(npu(device="9999")))
    await bound(bench, order(device="9999"))
    found = good(await offered(bench, entry(NPU, device="9999")))
    assert "productName" not in found.attributes
    assert found.attributes["pciDeviceID"] == "9999"
    assert found.capacity == {}


async def test_memory_is_told_where_the_catalogue_knows_it(tmp_path: Path) -> None:
    found = await bound_offers(tmp_path, load_description("node-ascend"), "19e5:d500")
    assert {one.attributes["productName"]: one.capacity for one in found} == {"Ascend-310P3": {"memory": "24Gi"}}


async def test_a_device_on_the_driver_of_the_host_is_not_offered_to_vms(make: Make) -> None:
    bench = make(host(npu()))
    assert await offered(bench, entry(NPU)) == "it is on rebellions, and no VM can have it so"


async def test_t13_a_device_on_vfio_before_us_is_offered_and_one_moved_back_is_not(make: Make) -> None:
    bench = make(host(npu()))
    await bound(bench, order())
    good(await offered(bench, entry(NPU)))
    bench.move(NPU, "rebellions", override="rebellions")
    assert "no VM can have it so" in str(await offered(bench, entry(NPU)))


async def test_t12_a_companion_on_the_hosts_driver_keeps_a_device_from_vms(make: Make) -> None:
    bench = make(host(graphics(), audio()))
    await bound(bench, order(graphics()["address"], vendor="10de", device="26b1", companions="Bind"))
    wanted = entry(graphics()["address"], vendor="10de", device="26b1", companions="Bind")
    assert good(await offered(bench, wanted)).attributes["groupViability"] == "Viable"
    bench.move(audio()["address"], "snd_hda_intel", override="snd_hda_intel")
    assert await offered(bench, wanted) == (
        f"its IOMMU group cannot go to a VM: {audio()['address']} is on snd_hda_intel"
    )


async def test_without_the_node_of_its_group_no_vm_can_open_it(make: Make) -> None:
    bench = make(host(npu()))
    await bound(bench, order())
    view = dataclasses.replace(await view_of(bench), vfio_nodes=frozenset())
    assert "/dev/vfio/20" in str(offer_of(entry(NPU), NPU, view, load_catalogue()))


async def test_an_absent_device_and_another_at_its_address_are_not_offered(make: Make) -> None:
    bench = make(host(npu(device="1220")))
    await bound(bench, order(device="1220"))
    assert await offered(bench, entry(NPU)) == "it is 1eff:1220, and 1eff:1250 was ordered"
    assert "there is no PCI device at 0000:99:00.0" in str(await offered(bench, entry("0000:99:00.0")))


async def test_what_the_api_would_refuse_is_not_offered(make: Make) -> None:
    bench = make(host(npu()))
    await bound(bench, order())
    view = await view_of(bench)
    odd = {NPU: dataclasses.replace(view.devices[NPU], pcie_root="x" * 65)}
    found = offer_of(entry(NPU), NPU, dataclasses.replace(view, devices={**view.devices, **odd}), load_catalogue())
    assert found == "attribute 'resource.kubernetes.io/pcieRoot': 65 bytes are more than 64"


async def test_another_function_than_its_own_is_not_offered_for_an_order(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    await bound(bench, order(), order(TWIN))
    assert await offered(bench, entry(NPU), TWIN) == f"{TWIN} is no virtual function of {NPU}"


async def test_virtual_functions_are_offered_for_the_order_of_their_card(tmp_path: Path) -> None:
    description = load_description("node-sriov")
    bench = Bench(tmp_path, description)
    try:
        card = next(one for one in description.devices if one.sriov_total_vfs is not None)
        fields: dict[str, Any] = {"vendor": card.vendor, "device": card.device, "virtualFunctions": 2}
        await bound(bench, order(card.address, **fields))
        view = await view_of(bench)
        functions = view.devices[card.address].virtual_functions
        assert len(functions) == 2
        for address in functions:
            found = good(offer_of(entry(card.address, **fields), address, view, load_catalogue()))
            assert found.attributes["vf"] is True
            assert found.attributes["resource.kubernetes.io/pciBusID"] == address
            assert found.address == address
    finally:
        bench.close()


async def test_a_device_for_containers_has_the_type_npu_and_needs_its_driver_and_nodes(make: Make) -> None:
    bench = make(host(npu()))
    wanted = entry(NPU, mode="Container")
    found = good(await offered(bench, wanted, device_nodes=["/dev/rbln0"]))
    assert found.name == "npu-0000-23-00-0"
    assert found.attributes["type"] == "npu"
    assert found.attributes["iommuGroup"] == 20
    assert "has made no device node" in str(await offered(bench, wanted, device_nodes=[]))
    bench.move(NPU, None)
    assert "it is on no driver" in str(await offered(bench, wanted))
    await bound(bench, order())
    assert "only a VM could open it" in str(await offered(bench, wanted))


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode not in RECIPES])
async def test_other_modes_are_not_published(make: Make, mode: Mode) -> None:
    bench = make(host(npu()))
    ordered = entry(NPU, mode=str(mode))
    assert await offered(bench, ordered) == f"devices of mode {mode} are not published"
    assert recipe(mode) is None
    assert prerequisites(mode) == ()


async def test_t20_a_rebind_by_others_shows_in_the_next_look(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    await bound(bench, order(), order(TWIN))
    before = [await offered(bench, entry(one)) for one in (NPU, TWIN)]
    bench.move(NPU, "rebellions", override="rebellions")
    after = [await offered(bench, entry(one)) for one in (NPU, TWIN)]
    assert isinstance(after[0], str)
    assert after[1] == before[1]


async def test_an_offer_can_be_read_back_from_its_slice(make: Make) -> None:
    bench = make(host(npu()))
    await bound(bench, order())
    found = dataclasses.replace(
        good(await offered(bench, entry(NPU))),
        capacity={"memory": "16Gi"},
        taints=(Taint(TaintKey.HANDOVER, "HandOver"), Taint(TaintKey.IN_USE, "")),
    )
    assert offer_from_device(device_of(found), found.driver, found.entry) == found
    assert offer_from_device({"name": "gpu-0"}, found.driver, found.entry) is None
