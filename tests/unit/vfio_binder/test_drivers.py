"""Which VFIO driver a device gets, and what happens when the kernel has none for it, or no IOMMU."""

from collections.abc import Callable

import pytest

from tests.builders.binder import NPU, Bench, host, npu, order, report_of, verdict

Make = Callable[..., Bench]

VARIANT = {
    "modules": [{"name": "rebel_vfio_pci", "requires": ["vfio_pci_core"]}],
    "drivers": [
        {
            "name": "rebel-vfio-pci",
            "module": "rebel_vfio_pci",
            "kind": "VFIO",
            "sharedNodes": ["vfio/vfio"],
            "overrideOnlyIds": [{"vendor": "1eff", "device": "1250"}],
        }
    ],
}


async def test_the_variant_that_the_kernel_names_for_the_device_is_taken(make: Make) -> None:
    bench = make(host(npu(), npu("0000:24:00.0", 21, device="1220"), **VARIANT))
    bench.order(order(), order("0000:24:00.0", device="1220"))
    done = await bench.run()
    assert bench.driver() == "rebel-vfio-pci"
    assert bench.driver("0000:24:00.0") == "vfio-pci"
    assert verdict(done) == ("Ready", "Bound")
    bench.order(order(intent="Release"))
    await bench.run()
    assert bench.driver() == "rebellions"


async def test_a_named_driver_wins_over_the_variant(make: Make) -> None:
    bench = make(host(npu(), **VARIANT))
    bench.order(order(driver="vfio-pci"))
    await bench.run()
    assert bench.driver() == "vfio-pci"
    bench.order(order(driver="rebel-vfio-pci"))
    done = await bench.run()
    assert verdict(done) == ("Ready", "Bound")
    assert bench.driver() == "rebel-vfio-pci"
    assert report_of(done).former_driver == "rebellions"
    bench.mark()
    bench.order(order())
    assert verdict(await bench.run()) == ("Ready", "Bound")
    assert bench.writes == []
    bench.order(order(intent="Release"))
    await bench.run()
    assert bench.driver() == "rebellions"


async def test_a_device_on_another_vfio_driver_by_somebody_else_is_not_stolen(make: Make) -> None:
    bench = make(host(npu(), **VARIANT))
    bench.kernel.load_module("vfio_pci")
    bench.move(NPU, "vfio-pci", override="vfio-pci")
    bench.mark()
    bench.order(order(driver="rebel-vfio-pci"))
    done = await bench.run()
    assert verdict(done) == ("Blocked", "BoundByOthers")
    assert bench.writes == []


async def test_a_driver_that_is_no_vfio_driver_is_refused(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order(driver="uio_pci_generic"))
    done = await bench.run()
    assert verdict(done) == ("Blocked", "DriverMissing")
    assert bench.writes == []


async def test_a_module_is_loaded_only_when_its_driver_is_not_there(make: Make) -> None:
    bench = make(host(npu(), npu("0000:24:00.0", 21), modules=[{"name": "vfio_pci", "state": "Loaded"}]))
    bench.order(order(), order("0000:24:00.0"))
    await bench.run()
    assert not [path for path, _ in bench.writes if path.startswith("module:")]
    other = make(host(npu(), npu("0000:24:00.0", 21)))
    other.order(order(), order("0000:24:00.0"))
    await other.run()
    assert [path for path, _ in other.writes].count("module:vfio_pci") == 1


async def test_a_kernel_without_the_module_blocks_the_device_untouched(make: Make) -> None:
    bench = make(host(npu(), modules=[{"name": "vfio_pci", "state": "Absent"}]))
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Blocked", "ModuleMissing")
    assert report_of(done).message == "the kernel has no module vfio_pci; install the package that has it"
    assert bench.sysfs_writes == []
    assert bench.driver() == "rebellions"
    assert bench.journal().entries == {}


async def test_a_module_that_does_not_load_blocks_the_device_untouched(make: Make) -> None:
    bench = make(host(npu()))
    bench.kernel.fail_next("module:vfio_pci", "EINVAL")
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Blocked", "ModuleMissing")
    assert "module vfio_pci cannot be loaded: EINVAL" in report_of(done).message
    assert bench.sysfs_writes == []
    bench.clock.advance(10)
    assert verdict(await bench.run()) == ("Ready", "Bound")


@pytest.mark.parametrize("iommu", ["Disabled", "UnsafeNoIOMMU"])
async def test_without_an_iommu_nothing_is_bound_and_the_fix_is_named(make: Make, iommu: str) -> None:
    bench = make(host(npu(), kernel={"iommu": iommu}))
    bench.order(order())
    done = await bench.run()
    assert verdict(done) == ("Blocked", "NoIOMMU")
    assert "intel_iommu=on" in report_of(done).message
    assert bench.writes == []
    assert done.inventory.devices[0].group_viability == "NoGroup"
    assert done.inventory.devices[0].iommu_group is None


async def test_iommufd_needs_a_device_node_and_the_bind_is_taken_back_without_one(make: Make) -> None:
    bench = make(host(npu(), kernel={"vfioNodes": "Group"}))
    bench.order(order(iommu="IOMMUFD"))
    done = await bench.run()
    assert verdict(done) == ("Failed", "VerifyFailed")
    assert "use iommu Auto or Legacy" in report_of(done).message
    assert bench.driver() == "rebellions"
    bench.order(order(iommu="Legacy"))
    assert verdict(await bench.run()) == ("Ready", "Bound")
    new = make(host(npu(), kernel={"vfioNodes": "GroupAndCdev"}))
    new.order(order(iommu="IOMMUFD"))
    assert verdict(await new.run()) == ("Ready", "Bound")
