"""Whatever is ordered in whatever sequence, the machine stays one that a kernel could be in."""

from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from simulated_node.description import DriverKind
from simulated_node.description_files import known_drivers
from simulated_node.model import handles, hotplug, modules, vfio, vgpu
from simulated_node.model.attributes import Attribute, Kind, write_attribute
from simulated_node.model.boot import boot
from simulated_node.model.state import Machine
from simulated_node.rules.registry import KernelError, WouldBlockError
from simulated_node.tree.entries import Link, Memory, Tree, lookup
from simulated_node.tree.render import render
from tests.builders import hosts
from tests.builders.examples import at_least

FLOOR = 2000
PF = "0000:30:00.0"
VFS = ("0000:30:10.0", "0000:30:10.2", "0000:30:10.4")
# A vGPU card, with a driver that makes its functions itself so that short sequences get there.
CARD = "0000:31:00.0"
FUNCTIONS = ("0000:31:00.4", "0000:31:00.5", "0000:31:00.6")
FRAME_BUFFER = 8
ADDRESSES = (hosts.NPU, hosts.TWIN, hosts.GRAPHICS, hosts.AUDIO, hosts.SICK, hosts.NOBODY, PF, *VFS, CARD, *FUNCTIONS)
DRIVERS = ("rebellions", "vfio-pci", "nvidia", "snd_hda_intel", "pci-stub", "igb", "pci-pf-stub")
NODES = ("rbln0", "rbln1", "vfio/20", "vfio/24", "vfio/devices/vfio0", "nvidia0", "vfio/0", "vfio/1", "vfio/2")

KEPT = {hosts.PORT, *ADDRESSES}
DESCRIPTION = hosts.bench(
    devices=[
        *(d.model_dump(mode="json", by_alias=True) for d in hosts.bench().devices if d.address in KEPT),
        {
            "address": PF,
            "parent": hosts.PORT,
            "vendor": "8086",
            "device": "10c9",
            "class": "020000",
            "iommuGroup": 50,
            "sriovTotalVFs": 3,
            "virtualFunctions": {"device": "10ca"},
        },
        {
            "address": CARD,
            "parent": hosts.PORT,
            "vendor": "10de",
            "device": "26b9",
            "class": "030200",
            "iommuGroup": 51,
            "sriovTotalVFs": 3,
            "virtualFunctions": {"firstOffset": 4, "stride": 1},
            "vgpu": {
                "frameBufferGiB": FRAME_BUFFER,
                "types": [{"id": size, "name": f"X-{size}Q", "frameBufferGiB": size} for size in (2, 4, 8)],
                "vfioPciToo": True,
            },
        },
    ],
    drivers=[
        {
            **next(driver for driver in known_drivers().drivers if driver.name == "nvidia").model_dump(
                mode="json", by_alias=True
            ),
            "sriov": {},
        }
    ],
    volumes=[],
    mounts=[],
    virtualInterfaces=[],
)

ORDERS = st.one_of(
    st.tuples(st.just("override"), st.sampled_from(ADDRESSES), st.sampled_from((*DRIVERS, "none", "\n"))),
    st.tuples(st.sampled_from(("bind", "unbind")), st.sampled_from(ADDRESSES), st.sampled_from(DRIVERS)),
    st.tuples(st.just("probe"), st.sampled_from(ADDRESSES), st.just("")),
    st.tuples(st.sampled_from(("new_id", "remove_id")), st.just("1eff 1250"), st.sampled_from(DRIVERS)),
    st.tuples(st.just("load"), st.just(""), st.sampled_from(("vfio_pci", "pci_stub", "pci_pf_stub", "none"))),
    st.tuples(st.sampled_from(("open", "close")), st.sampled_from(NODES), st.just("")),
    st.tuples(st.sampled_from(("remove", "add")), st.sampled_from(ADDRESSES), st.just("")),
    st.tuples(st.just("numvfs"), st.sampled_from((PF, CARD)), st.sampled_from(("0", "1", "3", "4"))),
    st.tuples(st.just("type"), st.sampled_from(FUNCTIONS), st.sampled_from(("0", "2", "4", "8", "9"))),
    st.tuples(st.just("mix"), st.just(CARD), st.sampled_from(("", "yes"))),
    st.tuples(st.just("autoprobe"), st.just(PF), st.sampled_from(("0", "1"))),
)


def act(machine: Machine, order: tuple[str, str, str], operation: int) -> None:
    what, subject, other = order
    match what:
        case "override":
            write_attribute(machine, Attribute(Kind.DRIVER_OVERRIDE, subject), other.encode(), operation)
        case "probe":
            write_attribute(machine, Attribute(Kind.DRIVERS_PROBE), subject.encode(), operation)
        case "type":
            if subject in machine.devices and vgpu.is_function(machine, machine.devices[subject]):
                write_attribute(machine, Attribute(Kind.VGPU_TYPE, subject), other.encode(), operation)
        case "mix":
            if subject in machine.devices:
                vgpu.mix_sizes(machine, machine.devices[subject], bool(other))
        case "numvfs" | "autoprobe":
            kind = Kind.SRIOV_NUMVFS if what == "numvfs" else Kind.SRIOV_AUTOPROBE
            if subject in machine.devices:
                write_attribute(machine, Attribute(kind, subject), other.encode(), operation)
        case "bind" | "unbind" | "new_id" | "remove_id":
            if other in machine.drivers:
                write_attribute(machine, Attribute(Kind(what), other), subject.encode(), operation)
        case "load":
            modules.load_module(machine, other, operation)
        case "open":
            handles.open_node(machine, subject, pid=100 + operation, comm="user", cgroup="/")
        case "close":
            handles.close_node(machine, subject, pid=None)
        case "remove":
            hotplug.remove(machine, subject, operation)
        case "add":
            found = next((device for device in DESCRIPTION.devices if device.address == subject), None)
            if found is not None:
                hotplug.add(machine, found, operation)


def facts(machine: Machine, *, half_way: bool = False) -> Any:
    """The state, without the outbox and what only counts attempts; ``half_way``: without what an order that sleeps may
    have taken away already, VFs and what hangs on them.
    """
    return (
        [
            (one.address, one.driver, one.override, *one.nodes, one.vfio_index, one.group, one.unsafe_group, one.holder)
            for one in machine.devices.values()
            if not (half_way and (one.physfn is not None or one.num_vfs))
        ],
        None if half_way else [(one.vgpu_type, one.vgpu_place, one.mixed_sizes) for one in machine.devices.values()],
        None if half_way else [(*one.virtfns.items(), one.num_vfs, one.autoprobe) for one in machine.devices.values()],
        [module.name for module in machine.modules.values() if module.loaded],
        [(driver.name, *driver.dynamic_ids) for driver in machine.drivers.values()],
        [(process.pid, *sorted(process.handles.items())) for process in machine.processes.values()],
    )


def check_state(machine: Machine) -> None:
    names = [node.name for device in machine.devices.values() for node in device.nodes]
    assert len(names) == len(set(names)), "two devices have one node"
    for device in machine.devices.values():
        if device.physfn is not None:
            assert len(machine.vfs_of(machine.devices[device.physfn])) <= machine.devices[device.physfn].num_vfs
        if device.driver is None:
            assert not device.nodes
            assert device.vfio_index is None
            continue
        driver = machine.drivers[device.driver]
        assert (device.vfio_index is not None) == vfio.is_on_vfio(machine, device)
        assert set(device.ancestors[1:]) <= machine.devices.keys()
        if vfio.is_owned_by_user(machine, device):
            native = driver.description.kind is DriverKind.NATIVE and not vfio.is_on_vfio(machine, device)
            assert not native, "a VM and the host share a group"
    check_vgpu(machine)
    for process in machine.processes.values():
        assert process.handles
        for name in process.handles.values():
            if name.startswith("vfio/"):
                assert not name.endswith("(deleted)"), "a VFIO node went while a device was held by it"
                assert len(machine.handles_on(name)) == 1


def check_vgpu(machine: Machine) -> None:
    given: set[int] = set()
    for address in FUNCTIONS:
        function = machine.devices.get(address)
        if function is None or function.vgpu_type is None:
            continue
        assert function.driver == "nvidia", "a type without its driver"
        places = set(range(function.vgpu_place, function.vgpu_place + function.vgpu_type))
        assert places <= set(range(FRAME_BUFFER)), "a type beyond the frame buffer"
        assert not places & given, "frame buffer given away twice"
        given |= places


def check_tree(machine: Machine, tree: Tree) -> None:
    for path, entry in tree.items():
        # A VF that was removed by itself leaves its link with the physical function.
        if isinstance(entry, Link) and not path.startswith(("/proc", "/var")) and "/virtfn" not in path:
            assert lookup(tree, path) is not None, f"{path} dangles"
    for device in machine.devices.values():
        found = lookup(tree, f"{hosts.DEVICES}/{device.address}/driver")
        # The link goes first when a device leaves its driver, which may wait for users.
        driver = None if device.leaving else device.driver
        assert (found[0] if found else None) == (f"{hosts.DRIVERS}/{driver}" if driver else None)
        group = lookup(tree, f"{hosts.DEVICES}/{device.address}/iommu_group/devices/{device.address}")
        assert group is not None
    groups = {f"/dev/{node}" for node in vfio.group_nodes(machine)}
    shown = {path for path in tree if path.startswith("/dev/vfio/") and path.rpartition("/")[2].isdigit()}
    assert shown == groups


def test_no_sequence_of_orders_leads_to_a_state_that_no_kernel_has() -> None:
    known = known_drivers()
    # Of all the sequences: each is the same boot of the same machine.
    memory = Memory()
    with at_least(FLOOR, "machine against its invariants") as examples:

        @example([("numvfs", "0000:31:00.0", "1"), ("open", "vfio/devices/vfio0", ""), ("numvfs", "0000:31:00.0", "0")])
        @settings(max_examples=2100, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.lists(ORDERS, min_size=1, max_size=12))
        def check(orders: list[tuple[str, str, str]]) -> None:
            examples.one()
            machine = boot(DESCRIPTION, known, boots=1)
            for operation, order in enumerate(orders, start=1):
                before, rest = facts(machine), facts(machine, half_way=True)
                try:
                    act(machine, order, operation)
                except KernelError:
                    assert facts(machine) == before, f"{order} failed and changed something"
                except WouldBlockError:
                    if order[0] != "remove":
                        assert facts(machine, half_way=True) == rest, f"{order} sleeps and changed something"
                check_state(machine)
            tree = render(machine)
            assert render(machine, memory) == tree, "a part that changed was not rendered again"
            check_tree(machine, tree)

        check()
