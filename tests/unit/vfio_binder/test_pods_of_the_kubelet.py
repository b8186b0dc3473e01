"""Devices that the kubelet says are in pods, and all devices while it says nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from crds.catalogue import load_catalogue
from node_host.bounded_call import BoundedCalls
from node_host.evidence.pod_resources import DIRECTORY
from node_host.handover.entry import shape_digest
from node_host.observer import Observer
from node_host.selection import is_accelerator, vendors_of
from tests.builders.binder import NPU, TWIN, Bench, host, npu, order, report_of, spec, verdict
from tests.builders.checkpoints import EARLIER, claim, write_checkpoint
from tests.builders.pod_resources import answering, make_pod_directories, pod_of

Make = Callable[..., Bench]
UID = "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10"


def users(done: Any, address: str = NPU) -> list[tuple[str, str, str, str | None]]:
    (device,) = (one for one in done.inventory.devices if one.address == address)
    return [(str(user.kind), user.name, user.detail, user.pod_uid) for user in device.used_by]


async def test_a_device_that_a_plugin_gave_to_a_pod_is_in_use_before_anything_is_open(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    bench.order(order(), order(TWIN))
    with answering(bench.host) as kubelet:
        kubelet.pods = [pod_of("trainer", plugins={"rebellions.ai/ATOM": ["rbln0"]})]
        make_pod_directories(bench.host, "team-a", "trainer", UID)
        done = await bench.run()
        assert verdict(done) == ("Blocked", "InUse")
        assert "in use by pod team-a/trainer (the kubelet gave it rebellions.ai/ATOM rbln0)" in report_of(done).message
        assert users(done) == [("Pod", "pod team-a/trainer", "the kubelet gave it rebellions.ai/ATOM rbln0", UID)]
        assert verdict(done, TWIN) == ("Ready", "Bound"), "a name that means another device keeps none else"
        assert not await bench.binder.is_let_go()
        kubelet.pods = []
        assert await bench.binder.is_let_go()
        assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_an_id_that_nothing_explains_keeps_all_devices_of_the_vendor_on_its_driver(make: Make) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    bench.order(order(TWIN))
    await bench.run()
    bench.order(order(), order(TWIN))
    with answering(bench.host) as kubelet:
        kubelet.pods = [pod_of("trainer", plugins={"rebellions.ai/ATOM": ["5e1c"]})]
        done = await bench.run()
        assert verdict(done) == ("Blocked", "InUse")
        assert users(done, TWIN) == [], "what is on VFIO is no plugin's of containers"
        kubelet.pods = [pod_of("trainer", plugins={"devices.kubevirt.io/kvm": ["kvm7"]})]
        assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_a_device_of_a_claim_is_in_use_by_the_kubelets_word_too(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    with answering(bench.host) as kubelet:
        kubelet.pods = [pod_of("vm", claims={"npu": ("npu.rebellions.ai", "npu-0000-23-00-0")})]
        done = await bench.run()
        assert verdict(done) == ("Blocked", "InUse")
        assert users(done) == [("Pod", "pod team-a/vm", "the kubelet gave it claim team-a/npu", None)]


async def test_what_the_kubelet_remembers_of_before_the_boot_keeps_the_device_from_another_shape_alone(
    make: Make,
) -> None:
    """It lists a claim before its pod starts again, and the pod waits for the very change that this must not stop."""
    bench = make(host(npu()))
    shape = shape_digest(spec(order()).devices[0])
    with answering(bench.host) as kubelet:
        kubelet.pods = [pod_of("vm", claims={"vm-npu": ("npufleet.io", "vfio-0000-23-00-0")})]
        write_checkpoint(bench.host, claim({NPU: shape}, boot_id=EARLIER))
        bench.order(order(companions="Bind"))
        done = await bench.run()
        assert verdict(done) == ("Blocked", "InUse")
        assert "had it before the last boot" in report_of(done).message
        bench.order(order())
        assert verdict(await bench.run()) == ("Ready", "Bound")
        write_checkpoint(bench.host, claim({NPU: shape}, boot_id=bench.kernel.boot_id))
        bench.order(order(intent="Release"))
        done = await bench.run()
        assert verdict(done) == ("Blocked", "InUse")
        assert {kind for kind, *_ in users(done)} == {"Claim", "Pod"}
        write_checkpoint(bench.host)
        assert verdict(await bench.run()) == ("Blocked", "InUse"), "a claim that the checkpoint does not know"


async def test_while_the_kubelet_does_not_answer_nothing_is_changed(make: Make) -> None:
    bench = make(host(npu()))
    bench.host.local(DIRECTORY).mkdir(parents=True)
    bench.order(order())
    bench.mark()
    done = await bench.run()
    assert verdict(done) == ("Blocked", "InUse")
    assert "the kubelet does not say which pods have it" in report_of(done).message
    assert [kind for kind, *_ in users(done)] == ["Unreadable"]
    assert bench.sysfs_writes == []
    with answering(bench.host):
        assert verdict(await bench.run()) == ("Ready", "Bound")
    assert verdict(await bench.run()) == ("Ready", "Bound"), "what is in place stays Ready"


async def test_a_pod_that_gets_the_device_while_the_binder_works_keeps_it(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    with answering(bench.host) as kubelet:
        plan = await bench.binder.dry_run(bench.orders)
        assert not plan.planned.is_empty

        class Late(list[Any]):
            """The answers to the second and to every later call."""

            def __iter__(self) -> Any:
                return iter([] if kubelet.calls < 3 else [pod_of("late", plugins={"rebellions.ai/ATOM": ["rbln0"]})])

        kubelet.pods = Late()
        assert verdict(await bench.run()) == ("Blocked", "InUse")
    assert bench.sysfs_writes == []


@pytest.mark.parametrize("asks", [True, False])
async def test_what_device_plugins_serve_is_told_on_request(make: Make, asks: bool) -> None:
    bench = make(host(npu(), npu(TWIN, 21)))
    catalogue = load_catalogue()
    observer = Observer(
        bench.host,
        BoundedCalls(),
        of_interest=is_accelerator(catalogue),
        vendors_of=vendors_of(catalogue),
        asks_plugins=asks,
    )
    with answering(bench.host) as kubelet:
        kubelet.allocatable = {"rebellions.ai/ATOM": ["rbln1"]}
        view = await observer.view()
        assert view.plugin_resources == ({TWIN: ("rebellions.ai/ATOM",)} if asks else {})
        assert view.plugins_unreadable is None
    view = await observer.view()
    assert (view.plugins_unreadable is not None) is asks
