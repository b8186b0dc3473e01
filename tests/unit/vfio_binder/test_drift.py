"""A device that somebody moves away is put back, but not for ever."""

from collections.abc import Callable

from tests.builders.binder import NPU, Bench, host, npu, order, report_of, verdict

Make = Callable[..., Bench]


async def drift(bench: Bench) -> None:
    bench.move(NPU, "rebellions")
    bench.mark()


async def test_a_device_that_was_moved_away_is_bound_again_and_still_goes_back_to_what_it_had(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    bench.move(NPU, None)
    done = await bench.run()
    assert verdict(done) == ("Ready", "Bound")
    assert report_of(done).former_driver == "rebellions"
    await drift(bench)
    assert verdict(await bench.run()) == ("Ready", "Bound")
    bench.order(order(intent="Release"))
    await bench.run()
    assert bench.driver() == "rebellions"


async def test_a_device_that_was_moved_away_and_is_used_there_is_left(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    await drift(bench)
    bench.kernel.open_device("/dev/rbln0", comm="vllm")
    done = await bench.run()
    assert verdict(done) == ("Blocked", "InUse")
    assert bench.writes == []


async def test_the_loop_breaker_stops_after_three_repairs_and_says_what_it_sees(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    for _ in range(3):
        bench.clock.advance(10)
        await drift(bench)
        assert verdict(await bench.run()) == ("Ready", "Bound")
    await drift(bench)
    done = await bench.run()
    assert verdict(done) == ("Failed", "DriftLoop")
    assert report_of(done).message == (
        "something moved it away 3 times within 10 min, so it is left there: stop that, then wait. Now on rebellions"
    )
    assert bench.writes == []
    assert bench.binder.next_due() == 580
    bench.clock.advance(580)
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_new_orders_close_the_loop_breaker_again(make: Make) -> None:
    bench = make(host(npu()))
    bench.order(order())
    await bench.run()
    for _ in range(3):
        await drift(bench)
        await bench.run()
    await drift(bench)
    assert verdict(await bench.run()) == ("Failed", "DriftLoop")
    bench.order(order())
    assert verdict(await bench.run()) == ("Ready", "Bound")


async def test_first_binds_and_orders_that_change_are_no_repairs(make: Make) -> None:
    bench = make(host(npu()))
    for _ in range(5):
        bench.order(order())
        assert verdict(await bench.run()) == ("Ready", "Bound")
        bench.order(order(mode="Container"))
        assert verdict(await bench.run()) == ("Ready", "NativeDriver")
