"""Names, generations and sizes of slices, and what becomes of those that are not as they should be."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dra_publisher.offers.offer import Offer, Taint, TaintKey
from dra_publisher.slices.pool import DROPS_TAINTS, PoolPlan, Verb, Wishes, plan
from dra_publisher.slices.resource_slice import Owner, Slice, read_slice, slice_prefix
from tests.builders.offers import NPUFLEET, REBELLIONS, offer

NODE = Owner("node-atom", "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10")
Object = dict[str, Any]
Offers = Mapping[str, Sequence[Offer]]


def written(planned: PoolPlan, before: Sequence[Slice] = ()) -> list[Slice]:
    """The slices after the writes."""
    there = {one.name: one for one in before}
    for number, write in enumerate(planned.writes):
        if write.verb is Verb.DELETE:
            assert there.pop(write.name).uid == write.uid
        else:
            assert (write.name in there) is (write.verb is Verb.REPLACE)
            uid = there[write.name].uid if write.name in there else f"uid-{number}-{len(there)}"
            body = {**write.body, "metadata": {**write.body["metadata"], "uid": uid, "resourceVersion": "1"}}
            there[write.name] = read_slice(body)
    return sorted(there.values(), key=lambda one: one.name)


def published(offers: Offers, before: Sequence[Slice] = (), **wishes: Any) -> list[Slice]:
    after = written(plan(offers, before, NODE, Wishes(**wishes)), before)
    assert plan(offers, after, NODE, Wishes(**wishes)).writes == ()
    return after


def foreign(name: str, *, driver: str = NPUFLEET, pool: str = NODE.name, **labels: str) -> Slice:
    return read_slice(
        {
            "metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": "7", "labels": labels},
            "spec": {
                "driver": driver,
                "nodeName": NODE.name,
                "pool": {"name": pool, "generation": 3, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0"}],
            },
        }
    )


def test_a_pool_of_one_slice_says_all_that_the_api_wants() -> None:
    (write,) = plan({NPUFLEET: [offer(1)]}, [], NODE).writes
    assert write.verb is Verb.CREATE
    assert write.body["metadata"] == {
        "name": "node-atom-npufleet.io-000",
        "labels": {"app.kubernetes.io/component": "npufleet-dra-publisher"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": NODE.name, "uid": NODE.uid}],
    }
    spec = write.body["spec"]
    assert spec["pool"] == {"name": "node-atom", "generation": 1, "resourceSliceCount": 1}
    assert (spec["driver"], spec["nodeName"]) == (NPUFLEET, "node-atom")
    assert [device["name"] for device in spec["devices"]] == ["vfio-0000-00-00-1"]


def test_a_driver_without_devices_has_an_empty_slice_and_one_out_of_use_none() -> None:
    before = published({NPUFLEET: [], REBELLIONS: [offer(1, driver=REBELLIONS)]})
    assert [(one.driver, len(one.devices)) for one in before] == [(REBELLIONS, 1), (NPUFLEET, 0)]
    after = published({NPUFLEET: []}, before)
    assert [one.driver for one in after] == [NPUFLEET]
    assert published({}, after) == []


@pytest.mark.parametrize(
    ("plain", "tainted", "sizes"),
    [(128, 0, [128]), (129, 0, [128, 1]), (64, 1, [64, 1]), (63, 1, [64]), (0, 65, [64, 1]), (256, 0, [128, 128])],
)
def test_slices_are_as_full_as_the_limit_allows(plain: int, tainted: int, sizes: list[int]) -> None:
    taint = [Taint(TaintKey.IN_USE, "InUse")]
    offers = [offer(n, taints=taint) for n in range(tainted)] + [offer(n) for n in range(tainted, tainted + plain)]
    after = published({NPUFLEET: offers})
    assert [len(one.devices) for one in after] == sizes
    assert [one.name[-3:] for one in after] == [f"{n:03}" for n in range(len(sizes))]
    assert {one.count for one in after} == {len(sizes)}
    names = [device["name"] for one in after for device in one.devices]
    assert names == sorted(one.name for one in offers)


def test_any_change_gives_every_slice_of_the_pool_a_new_generation_and_of_no_other_pool() -> None:
    offers = {NPUFLEET: [offer(n) for n in range(200)], REBELLIONS: [offer(n, driver=REBELLIONS) for n in range(3)]}
    before = published(offers)
    changed = {**offers, NPUFLEET: [*offers[NPUFLEET][:-1], offer(199, attributes={"type": "vfio"})]}
    planned = plan(changed, before, NODE)
    assert [(write.verb, write.name[-3:]) for write in planned.writes] == [(Verb.REPLACE, "000"), (Verb.REPLACE, "001")]
    after = written(planned, before)
    assert {(one.driver, one.generation) for one in after} == {(NPUFLEET, 2), (REBELLIONS, 1)}


def test_the_order_in_which_devices_are_offered_is_nothing() -> None:
    offers = [offer(n) for n in range(20)]
    assert plan({NPUFLEET: offers[::-1]}, published({NPUFLEET: offers}), NODE).writes == ()


def test_what_the_server_adds_is_no_difference() -> None:
    taint = [Taint(TaintKey.HANDOVER, "HandOver")]
    offers = {NPUFLEET: [offer(1, taints=taint, capacity={"memory": "1024Mi"})]}
    (write,) = plan(offers, [], NODE).writes
    device = write.body["spec"]["devices"][0]
    device["taints"][0]["timeAdded"] = "2026-12-01T00:00:00Z"
    device["capacity"]["memory"]["value"] = "1Gi"
    body = {**write.body, "metadata": {**write.body["metadata"], "uid": "u", "resourceVersion": "1"}}
    assert plan(offers, [read_slice(body)], NODE).writes == ()
    more = {NPUFLEET: [*offers[NPUFLEET], offer(2)]}
    (again,) = plan(more, [read_slice(body)], NODE).writes
    assert again.body["spec"]["devices"][0]["taints"] == device["taints"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda one: one["spec"]["pool"].update(generation=9),
        lambda one: one["spec"]["pool"].update(resourceSliceCount=9),
        lambda one: one["spec"]["devices"].pop(),
        lambda one: one["spec"]["devices"].reverse(),
        lambda one: one["spec"]["devices"][0].update(allowMultipleAllocations=True),
        lambda one: one["spec"]["devices"][0]["attributes"].update(x={"int": 1}),
        lambda one: one["spec"]["devices"][0].update(taints=[{"key": "a", "effect": "NoExecute"}]),
        lambda one: one["spec"].update(sharedCounters=[]),
        lambda one: one["metadata"].update(labels={}),
        lambda one: one["metadata"].update(ownerReferences=[]),
    ],
)
def test_what_others_do_to_a_slice_is_put_right(edit: Any) -> None:
    offers = {NPUFLEET: [offer(n) for n in range(130)]}
    plain = [{**write.body} for write in plan(offers, [], NODE).writes]
    for number, body in enumerate(plain):
        body["metadata"] = {**body["metadata"], "uid": f"u{number}", "resourceVersion": "5"}
    edit(plain[0])
    before = [read_slice(body) for body in plain]
    after = published(offers, before)
    assert [one.devices for one in after] == [one.devices for one in published(offers)]
    assert {one.generation for one in after} == {max(one.generation for one in before) + 1}


def test_labels_and_annotations_of_others_stay() -> None:
    (write,) = plan({NPUFLEET: [offer(1)]}, [], NODE).writes
    metadata = {**write.body["metadata"], "uid": "u", "resourceVersion": "1", "annotations": {"a": "b"}}
    metadata["labels"] = {**metadata["labels"], "team": "x"}
    (again,) = plan({NPUFLEET: [offer(2)]}, [read_slice({**write.body, "metadata": metadata})], NODE).writes
    assert again.body["metadata"]["annotations"] == {"a": "b"}
    assert again.body["metadata"]["labels"]["team"] == "x"
    assert (again.uid, again.resource_version) == ("u", "1")
    assert again.body["metadata"]["uid"] == "u"
    assert again.body["metadata"]["resourceVersion"] == "1"


def test_a_wiped_pool_comes_back_with_a_generation_that_was_not_there_yet() -> None:
    assert published({NPUFLEET: [offer(1)]}, generations={NPUFLEET: 7})[0].generation == 8


def test_the_last_generation_is_followed_by_the_first_of_a_pool_that_is_made_anew() -> None:
    (write,) = plan({NPUFLEET: [offer(1)]}, [], NODE).writes
    write.body["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    write.body["spec"]["pool"]["generation"] = 2**63 - 1
    planned = plan({NPUFLEET: [offer(2)]}, [read_slice(write.body)], NODE)
    assert [one.verb for one in planned.writes] == [Verb.DELETE, Verb.CREATE]
    assert planned.writes[1].body["spec"]["pool"]["generation"] == 1


def test_a_pool_that_was_set_back_is_written_anew() -> None:
    before = published({NPUFLEET: [offer(1)]})
    assert published({NPUFLEET: [offer(1)]}, before, generations={NPUFLEET: 7})[0].generation == 8


def test_a_slice_too_many_goes_and_the_pool_has_a_new_generation() -> None:
    before = published({NPUFLEET: [offer(1)]})
    label = {"app.kubernetes.io/component": "npufleet-dra-publisher"}
    stray = dataclasses.replace(foreign("node-atom-npufleet.io-007", **label), generation=1)
    after = published({NPUFLEET: [offer(1)]}, [*before, stray])
    assert [(one.name, one.generation) for one in after] == [("node-atom-npufleet.io-000", 2)]


def test_a_pool_at_its_last_generation_is_removed_once() -> None:
    before = [
        dataclasses.replace(one, generation=2**63 - 1) for one in published({NPUFLEET: [offer(n) for n in range(130)]})
    ]
    planned = plan({NPUFLEET: [offer(1)]}, before, NODE)
    assert [write.verb for write in planned.writes] == [Verb.DELETE, Verb.DELETE, Verb.CREATE]


def test_one_bad_device_does_not_cost_the_others() -> None:
    bad = offer(2, attributes={"name": "x" * 65})
    planned = plan({NPUFLEET: [offer(1), bad, offer(3)]}, [], NODE)
    (after,) = written(planned)
    assert [device["name"] for device in after.devices] == ["vfio-0000-00-00-1", "vfio-0000-00-00-3"]
    assert "65 bytes" in planned.left_out[NPUFLEET, bad.name]


def test_two_devices_of_one_name_and_one_of_another_driver_are_left_out() -> None:
    planned = plan({NPUFLEET: [offer(1), offer(1), offer(2, driver=REBELLIONS)]}, [], NODE)
    assert [len(one.devices) for one in written(planned)] == [1]
    assert sorted(planned.left_out) == [(NPUFLEET, offer(1).name), (NPUFLEET, offer(2).name)]


def test_a_driver_of_an_impossible_name_costs_itself_only() -> None:
    planned = plan({"Bad_Name": [offer(1, driver="a")], NPUFLEET: [offer(2)]}, [], NODE)
    assert [one.driver for one in written(planned)] == [NPUFLEET]
    assert "no DNS subdomain" in planned.left_out["Bad_Name", offer(1).name]


def test_without_taints_the_device_is_left_out_and_comes_back_without_its_taint() -> None:
    tainted = {NPUFLEET: [offer(1, taints=[Taint(TaintKey.HANDOVER, "HandOver")]), offer(2)]}
    after = published(tainted, keeps_taints=False)
    assert [device["name"] for device in after[0].devices] == [offer(2).name]
    assert plan(tainted, [], NODE, Wishes(keeps_taints=False)).left_out == {(NPUFLEET, offer(1).name): DROPS_TAINTS}
    again = published({NPUFLEET: [offer(1), offer(2)]}, after, keeps_taints=False)
    assert len(again[0].devices) == 2


def test_a_pool_of_somebody_else_is_left_to_them_and_they_are_named() -> None:
    before = published({NPUFLEET: [offer(1)], REBELLIONS: [offer(2, driver=REBELLIONS)]})
    other = foreign("node-atom-npufleet.io-x7k2p")
    planned = plan({NPUFLEET: [offer(1)], REBELLIONS: [offer(2, driver=REBELLIONS)]}, [*before, other], NODE)
    assert planned.conflicts == {
        NPUFLEET: "another plugin publishes under npufleet.io here: ResourceSlice node-atom-npufleet.io-x7k2p"
    }
    assert [(write.verb, write.driver) for write in planned.writes] == [(Verb.DELETE, NPUFLEET)]
    assert (NPUFLEET, offer(1).name) in planned.left_out


def test_slices_of_other_drivers_are_never_touched() -> None:
    others = [foreign("node-atom-gpu.example.com-abcde", driver="gpu.example.com"), foreign("x", driver="y", pool="z")]
    assert plan({}, others, NODE).writes == ()
    assert {write.name for write in plan({NPUFLEET: [offer(1)]}, others, NODE).writes} == {"node-atom-npufleet.io-000"}


def test_a_slice_of_ours_that_lost_its_label_is_known_by_its_name() -> None:
    bare = foreign("node-atom-npufleet.io-000")
    planned = plan({NPUFLEET: [offer(1)]}, [bare], NODE)
    assert [(write.verb, write.uid) for write in planned.writes] == [(Verb.REPLACE, bare.uid)]
    assert planned.conflicts == {}


def test_a_slice_that_is_of_another_pool_under_our_name_is_made_anew() -> None:
    wrong = foreign(
        "node-atom-npufleet.io-000", pool="other", **{"app.kubernetes.io/component": "npufleet-dra-publisher"}
    )
    planned = plan({NPUFLEET: [offer(1)]}, [wrong], NODE)
    assert [write.verb for write in planned.writes] == [Verb.DELETE, Verb.CREATE]


def test_names_that_are_too_long_or_taken_have_a_hash_and_stay_names() -> None:
    long = slice_prefix("n" * 60 + "." + "o" * 180, NPUFLEET)
    assert len(f"{long}-0000") <= 253
    assert long != slice_prefix("n" * 60 + "." + "o" * 181, NPUFLEET)
    plain, hashed = slice_prefix("a-b", "c.io"), slice_prefix("a-b", "c.io", hashed=True)
    assert plain == slice_prefix("a", "b-c.io")
    assert hashed != slice_prefix("a", "b-c.io", hashed=True)
    cut_at_a_dot = slice_prefix("n" * 236 + "." + "o" * 10, NPUFLEET)
    assert ".-" not in cut_at_a_dot
    after = published({NPUFLEET: [offer(1)]}, published({NPUFLEET: [offer(1)]}), hashed={NPUFLEET})
    assert [one.name for one in after] == [f"{slice_prefix(NODE.name, NPUFLEET, hashed=True)}-000"]


def test_another_incarnation_of_the_node_owns_the_slices_anew() -> None:
    before = published({NPUFLEET: [offer(1)]})
    planned = plan({NPUFLEET: [offer(1)]}, before, Owner(NODE.name, "other"))
    assert [write.verb for write in planned.writes] == [Verb.REPLACE]
    assert planned.writes[0].body["metadata"]["ownerReferences"][0]["uid"] == "other"
