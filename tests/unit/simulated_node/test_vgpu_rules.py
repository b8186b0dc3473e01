"""vGPU types on the VFs of one card, as the vendor's driver of the simulated kernel gives them out."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node_host.host import Host
from simulated_node.description_files import load_description
from simulated_node.kernel import SimulatedKernel
from tests.builders import hosts
from tests.builders.hosts import DRIVERS, Sleeper
from tests.builders.kernel_rules import allows, shows
from tests.builders.waiting import eventually

CARD = "0000:21:00.0"
OTHER_CARD = "0000:22:00.0"
NUMVFS = hosts.attribute(CARD, "sriov_numvfs")
HEADER = "ID    : vGPU Name\n"
SIZES = {1: 1147, 2: 1148, 4: 1150, 6: 1151, 8: 1152, 12: 1153, 16: 1154, 24: 1155, 48: 1156}


def functions(card: str = CARD) -> list[str]:
    """The first addresses of the card's VFs, its vendor's offset and stride."""
    return [f"{card[:-1]}{function}" for function in (4, 5, 6, 7)]


VF, SECOND, THIRD, FOURTH = functions()


def type_of(host: Host, address: str) -> int:
    return int(hosts.text(host, hosts.attribute(address, "nvidia/current_vgpu_type")))


def set_type(host: Host, address: str, number: int) -> None:
    host.write(hosts.attribute(address, "nvidia/current_vgpu_type"), str(number).encode())


def creatable(host: Host, address: str) -> list[int]:
    """The sizes in GiB that the VF's list names."""
    text = hosts.text(host, hosts.attribute(address, "nvidia/creatable_vgpu_types"))
    assert text.startswith(HEADER)
    rows = [line.split(" : ") for line in text.removeprefix(HEADER).splitlines()]
    sizes = [int(name.removeprefix("NVIDIA L40S-").removesuffix("Q")) for _, name in rows]
    assert [int(number) for number, _ in rows] == [SIZES[size] for size in sizes]
    return sizes


def make_functions(host: Host, card: str = CARD) -> None:
    """As the vendor's tool does: the card on pci-pf-stub, all VFs made, the card back on its driver."""
    hosts.give_to_vfio(host, card, "pci-pf-stub")
    host.write(hosts.attribute(card, "sriov_numvfs"), host.read(hosts.attribute(card, "sriov_totalvfs")))
    host.write(hosts.attribute(card, "driver_override"), b"\n")
    host.write(f"{DRIVERS}/pci-pf-stub/unbind", card.encode())
    host.write(f"{DRIVERS}/nvidia/bind", card.encode())


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[SimulatedKernel]:
    with SimulatedKernel(tmp_path / "host", load_description("node-l40s")) as kernel:
        make_functions(kernel.host())
        yield kernel


@shows("vgpu.function-has-nodes", "vgpu.list-of-creatable-types")
@allows("vgpu.vfio-pci-refused")
def test_function_has_lists_and_nodes_from_the_vendors_driver(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.write(f"{DRIVERS}/nvidia/unbind", VF.encode())
    assert not host.exists(hosts.attribute(VF, "vfio-dev"))
    host.write(f"{DRIVERS}/nvidia/bind", VF.encode())
    assert hosts.driver_of(host, VF) == hosts.driver_of(host, CARD) == "nvidia"
    assert hosts.text(host, hosts.attribute(VF, "device")) == hosts.text(host, hosts.attribute(CARD, "device"))
    assert creatable(host, VF) == list(SIZES)
    assert type_of(host, VF) == 0
    group = host.resolve(hosts.attribute(VF, "iommu_group")).rpartition("/")[2]
    assert host.exists(f"/dev/vfio/{group}")
    assert host.list(hosts.attribute(VF, "vfio-dev"))
    assert host.exists("/dev/vfio/vfio")
    assert not host.exists(hosts.attribute(CARD, "nvidia"))
    assert len([name for name in host.list("/dev") if name.startswith("nvidia") and name != "nvidiactl"]) == 2
    assert host.list("/proc/driver/nvidia/gpus") == [CARD, OTHER_CARD]
    kernel.open_device(f"/dev/vfio/{group}")


@shows("vgpu.type-is-set", "vgpu.zero-clears")
@allows("vgpu.not-a-number", "vgpu.not-creatable", "vgpu.held", "vgpu.mixed-sizes")
def test_type_is_set_read_back_and_cleared(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_type(host, VF, 1155)
    assert type_of(host, VF) == 1155
    assert creatable(host, VF) == []
    set_type(host, VF, 0)
    assert type_of(host, VF) == 0
    assert creatable(host, VF) == list(SIZES)


@shows("vgpu.list-of-creatable-types", "vgpu.type-is-set")
def test_lists_of_the_siblings_shrink_to_one_size_and_then_to_nothing(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_type(host, VF, SIZES[24])
    assert creatable(host, SECOND) == [24]
    set_type(host, SECOND, SIZES[24])
    assert creatable(host, THIRD) == []
    assert hosts.text(host, hosts.attribute(THIRD, "nvidia/creatable_vgpu_types")) == HEADER
    set_type(host, VF, 0)
    assert creatable(host, VF) == creatable(host, THIRD) == [24]
    set_type(host, SECOND, 0)
    assert creatable(host, VF) == list(SIZES)


@pytest.mark.parametrize("size", [4, 16, 48])
def test_card_carries_as_many_of_a_size_as_fit(kernel: SimulatedKernel, size: int) -> None:
    host = kernel.host()
    addresses = [name for name in host.list(f"{DRIVERS}/nvidia") if name.startswith("0000:21") and name != CARD]
    assert len(addresses) == 16
    for address in addresses[: 48 // size]:
        set_type(host, address, SIZES[size])
    with hosts.refused("EIO"):
        set_type(host, addresses[-1], SIZES[size])


def test_cards_do_not_share_their_frame_buffer(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    make_functions(host, OTHER_CARD)
    set_type(host, VF, SIZES[48])
    assert creatable(host, functions(OTHER_CARD)[0]) == list(SIZES)


@shows("vgpu.not-creatable")
@pytest.mark.parametrize("number", [1, 1149, 9999, 4294967295])
def test_unknown_type_is_an_input_output_error(kernel: SimulatedKernel, number: int) -> None:
    with hosts.refused("EIO"):
        set_type(kernel.host(), VF, number)
    assert type_of(kernel.host(), VF) == 0


@shows("vgpu.not-creatable", "vgpu.same-type-does-nothing")
def test_function_with_a_type_takes_no_other_before_it_is_cleared(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_type(host, VF, SIZES[24])
    set_type(host, VF, SIZES[24])
    for size in (12, 48):
        with hosts.refused("EIO"):
            set_type(host, VF, SIZES[size])
    assert type_of(host, VF) == SIZES[24]


@shows("vgpu.not-a-number")
@pytest.mark.parametrize(
    "written", [b"L40S-24Q", b"\n", b" 1155", b"0x483", b"-1", b"4294967296", b"1155 ", b"1" * 5000]
)
def test_what_is_no_number_is_invalid(kernel: SimulatedKernel, written: bytes) -> None:
    with hosts.refused("EINVAL"):
        kernel.host().write(hosts.attribute(VF, "nvidia/current_vgpu_type"), written)


@allows("vgpu.not-a-number")
@pytest.mark.parametrize("written", [b"1155", b"1155\n", b"+1155", b"01155"])
def test_number_may_be_written_as_the_kernel_reads_decimals(kernel: SimulatedKernel, written: bytes) -> None:
    kernel.host().write(hosts.attribute(VF, "nvidia/current_vgpu_type"), written)
    assert type_of(kernel.host(), VF) == 1155


@shows("vgpu.held")
def test_type_of_a_function_in_use_stays_as_it_is(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_type(host, VF, SIZES[24])
    group = host.resolve(hosts.attribute(VF, "iommu_group")).rpartition("/")[2]
    kernel.open_device(f"/dev/vfio/{group}")
    for number in (0, SIZES[24], SIZES[48]):
        with hosts.refused("EBUSY"):
            set_type(host, VF, number)
    set_type(host, SECOND, SIZES[24])
    kernel.close_device(f"/dev/vfio/{group}")
    set_type(host, VF, 0)


@shows("vgpu.vfio-pci-refused")
def test_vfio_pci_does_not_take_a_vgpu_function(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    host.load_module("vfio-pci")
    host.write(hosts.attribute(VF, "driver_override"), b"vfio-pci")
    host.write(f"{DRIVERS}/nvidia/unbind", VF.encode())
    with hosts.refused("EINVAL"):
        host.write(f"{DRIVERS}/vfio-pci/bind", VF.encode())
    assert hosts.driver_of(host, VF) is None


def test_vfio_pci_takes_the_functions_of_a_card_that_lets_it(tmp_path: Path) -> None:
    description = load_description("node-l40s")
    devices = [
        device
        if device.vgpu is None
        else device.model_copy(update={"vgpu": device.vgpu.model_copy(update={"vfio_pci_too": True})})
        for device in description.devices
    ]
    changed = description.model_copy(update={"devices": tuple(devices)})
    with SimulatedKernel(tmp_path / "host", changed) as kernel:
        make_functions(kernel.host())
        hosts.give_to_vfio(kernel.host(), VF)
        assert hosts.driver_of(kernel.host(), VF) == "vfio-pci"
        assert not kernel.host().exists(hosts.attribute(VF, "nvidia"))


@shows("vgpu.forgotten")
def test_unbound_function_has_lost_its_type_and_given_its_frame_buffer_back(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_type(host, VF, SIZES[48])
    host.write(f"{DRIVERS}/nvidia/unbind", VF.encode())
    assert not host.exists(hosts.attribute(VF, "nvidia"))
    assert creatable(host, SECOND) == list(SIZES)
    host.write(f"{DRIVERS}/nvidia/bind", VF.encode())
    assert type_of(host, VF) == 0


@shows("vgpu.forgotten")
def test_card_that_loses_its_driver_forgets_all_types(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_type(host, VF, SIZES[24])
    host.write(f"{DRIVERS}/nvidia/unbind", CARD.encode())
    assert hosts.text(host, NUMVFS) == "16\n"
    assert type_of(host, VF) == 0


@shows("vgpu.forgotten")
def test_functions_that_are_made_anew_have_no_types(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_type(host, VF, SIZES[24])
    hosts.give_to_vfio(host, CARD, "pci-pf-stub")
    host.write(NUMVFS, b"0")
    host.write(NUMVFS, b"4")
    assert creatable(host, VF) == list(SIZES)
    set_type(host, VF, SIZES[24])
    kernel.reboot()
    assert hosts.text(host, NUMVFS) == "0\n"
    make_functions(host)
    assert type_of(host, VF) == 0


@shows("sriov.destroying-waits-for-vfio-user")
def test_frame_buffer_stays_taken_while_a_user_keeps_a_function_that_goes(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    set_type(host, SECOND, SIZES[24])
    hosts.give_to_vfio(host, CARD, "pci-pf-stub")
    set_type(host, SECOND, SIZES[24])
    group = host.resolve(hosts.attribute(SECOND, "iommu_group")).rpartition("/")[2]
    kernel.open_device(f"/dev/vfio/{group}")
    order = Sleeper(lambda: host.write(NUMVFS, b"0"))
    eventually(lambda: kernel.sleeping, every=0.005)
    assert not host.exists(f"{hosts.DEVICES}/{VF}")
    assert not host.exists(hosts.attribute(SECOND, "nvidia"))
    assert creatable(host, THIRD) == [24]
    kernel.close_device(f"/dev/vfio/{group}")
    assert order.result() == "ok"


@shows("vgpu.mixed-sizes")
def test_mixed_sizes_begin_at_places_of_their_own(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    kernel.mix_vgpu_sizes(CARD, allowed=True)
    set_type(host, VF, SIZES[24])
    assert creatable(host, SECOND) == [1, 2, 4, 6, 8, 12, 16, 24]
    set_type(host, SECOND, SIZES[4])
    assert creatable(host, THIRD) == [1, 2, 4, 6, 8, 12]
    with hosts.refused("EBUSY"):
        kernel.mix_vgpu_sizes(CARD, allowed=False)
    for address in (VF, SECOND):
        set_type(host, address, 0)
    kernel.mix_vgpu_sizes(CARD, allowed=False)
    set_type(host, VF, SIZES[24])
    assert creatable(host, SECOND) == [24]


def test_mixed_sizes_go_with_the_last_function(kernel: SimulatedKernel) -> None:
    host = kernel.host()
    kernel.mix_vgpu_sizes(CARD, allowed=True)
    hosts.give_to_vfio(host, CARD, "pci-pf-stub")
    host.write(NUMVFS, b"0")
    host.write(NUMVFS, b"4")
    set_type(host, VF, SIZES[24])
    assert creatable(host, SECOND) == [24]
