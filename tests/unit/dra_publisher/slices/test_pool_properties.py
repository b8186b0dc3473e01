"""Whatever is there and whatever is offered: one plan makes the slices say it, within the API's rules, and no more."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from dra_publisher.offers.offer import Offer, Taint, TaintKey
from dra_publisher.slices.device import essence
from dra_publisher.slices.pool import PoolPlan, Verb, Wishes, plan
from dra_publisher.slices.resource_slice import COMPONENT, COMPONENT_LABEL, Owner, Slice, read_slice
from tests.builders.examples import at_least
from tests.builders.offers import NPUFLEET, REBELLIONS, offer
from tests.builders.slice_server import faults_of

FLOOR = 2000
NODE = Owner("node-atom", "3f6b8a52-2f5e-4a0b-9f57-2f6f8f1f9c10")
DRIVERS = (NPUFLEET, REBELLIONS, "a.example")
OTHER = "gpu.example.com"
Object = dict[str, Any]


class Server:
    """Slices by name, changed by plans with the server's rules and by others without any."""

    def __init__(self, random: Random) -> None:
        self.items: dict[str, Object] = {}
        self._random = random
        self._version = 0

    def slices(self) -> list[Slice]:
        found = [read_slice(item) for item in self.items.values()]
        self._random.shuffle(found)
        return found

    def act(self, planned: PoolPlan, stop_after: int | None = None) -> None:
        for write in planned.writes[:stop_after]:
            old = self.items.get(write.name)
            if write.verb is Verb.CREATE:
                assert old is None
            else:
                assert old is not None
                assert write.uid == old["metadata"]["uid"]
                assert write.resource_version == old["metadata"]["resourceVersion"]
            if write.verb is Verb.DELETE:
                del self.items[write.name]
                continue
            assert list(faults_of(write.body, old)) == []
            self.put(write.body, old)

    def put(self, body: Object, old: Object | None = None) -> None:
        self._version += 1
        uid = old["metadata"]["uid"] if old is not None else f"uid-{self._version}"
        metadata = {**body["metadata"], "uid": uid, "resourceVersion": str(self._version)}
        devices = [dict(device) for device in body["spec"].get("devices", [])]
        for device in devices:
            if "taints" in device:
                device["taints"] = [{"timeAdded": f"t{self._version}", **taint} for taint in device["taints"]]
        self.items[metadata["name"]] = {"metadata": metadata, "spec": {**body["spec"], "devices": devices}}

    def meddle(self) -> str:
        """Somebody else's doing."""
        random = self._random
        what = random.choice(["delete", "wipe", "edit", "label", "count", "generation", "stranger", "owner", "nothing"])
        own = sorted(name for name, item in self.items.items() if item["spec"]["driver"] != OTHER)
        if what == "stranger":
            driver = random.choice([OTHER, OTHER, random.choice(DRIVERS)])
            pool = {"name": random.choice([NODE.name, NODE.name, "x"]), "generation": 5, "resourceSliceCount": 1}
            spec = {"driver": driver, "nodeName": NODE.name, "pool": pool, "devices": [{"name": "gpu-0"}]}
            self.put({"metadata": {"name": f"{NODE.name}-{driver}-x{random.randrange(99)}k"}, "spec": spec})
        elif what == "wipe":
            driver = random.choice(DRIVERS)
            self.items = {name: item for name, item in self.items.items() if item["spec"]["driver"] != driver}
        elif own:
            item = self.items[random.choice(own)]
            spec, metadata = item["spec"], item["metadata"]
            if what == "delete":
                del self.items[metadata["name"]]
            elif what == "edit" and spec["devices"]:
                spec["devices"].pop(random.randrange(len(spec["devices"])))
            elif what == "label":
                metadata["labels"] = {}
            elif what == "count":
                spec["pool"]["resourceSliceCount"] = random.randint(1, 9)
            elif what == "generation":
                spec["pool"]["generation"] = random.choice([0, 1, 40, 2**63 - 1])
            elif what == "owner":
                metadata["ownerReferences"] = []
        return what


def random_offers(random: Random) -> dict[str, list[Offer]]:
    offers = {}
    for driver in DRIVERS:
        if random.random() < 0.7:
            size = random.choice([0, 0, 1, 1, 2, 2, 3, 5, 8, 16, random.choice([63, 64, 65, 127, 128, 129, 140])])
            offers[driver] = [_random_offer(random, n, driver) for n in random.sample(range(200), size)]
    return offers


def _random_offer(random: Random, number: int, driver: str) -> Offer:
    kind = random.random()
    more: dict[str, Any] = {}
    if kind < 0.02:
        more["attributes"] = {"a" * 33: 1}  # the API takes no such name
    elif kind < 0.1:
        more["attributes"] = {"type": "vfio", "iommuGroup": random.randrange(3)}
    elif kind < 0.15:
        more["capacity"] = {"memory": random.choice(["16Gi", "1024Mi"])}
    taints = [Taint(TaintKey.IN_USE, random.choice(["A", "B"]))] if random.random() < 0.03 else []
    return offer(number, driver=driver, taints=taints, **more)


def check(server: Server, offers: dict[str, list[Offer]], planned: PoolPlan, wishes: Wishes) -> None:
    """What the slices say is what is offered, but for what is left out; every pool is whole."""
    ours = [one for one in server.slices() if one.labelled]
    assert {one.driver for one in ours} == set(offers) - set(planned.conflicts)
    for driver in {one.driver for one in ours}:
        pool = sorted((one for one in ours if one.driver == driver), key=lambda one: one.name)
        assert {one.count for one in pool} == {len(pool)}
        assert len({one.generation for one in pool}) == 1
        assert 0 <= pool[0].generation < 2**63
        assert all([dict(one) for one in found.owners] == [NODE.reference] for found in pool)
        said = {device["name"]: essence(device) for one in pool for device in one.devices}
        wanted = {one.name for one in offers[driver]} - {name for key, name in planned.left_out if key == driver}
        assert set(said) == wanted
        assert [name for one in pool for name in (device["name"] for device in one.devices)] == sorted(wanted)
        for one in offers[driver]:
            if one.name in said:
                assert {taint["key"] for taint in said[one.name].get("taints", [])} == {t.key for t in one.taints}
                assert len(said[one.name].get("attributes", {})) == len(one.attributes)
    for driver, offered in offers.items():
        for one in offered:
            bad = any(len(name) > 32 for name in one.attributes if "/" not in name)
            dropped = bool(one.taints) and not wishes.keeps_taints
            assert ((driver, one.name) in planned.left_out) is (bad or dropped or driver in planned.conflicts)


def test_one_plan_makes_the_slices_say_what_is_offered_and_the_next_writes_nothing() -> None:
    seen: Counter[str] = Counter()
    with at_least(FLOOR, "pools") as examples:
        for number in range(FLOOR):
            random = Random(number)
            server = Server(random)
            wishes = Wishes(keeps_taints=random.random() < 0.8)
            offers = random_offers(random)
            for _ in range(random.randint(0, 2)):
                server.act(plan(offers, server.slices(), NODE, wishes), random.choice([None, None, 1, 2]))
                seen[server.meddle()] += 1
                if random.random() < 0.5:
                    offers = random_offers(random)
            strangers = {name: item for name, item in server.items.items() if not _is_ours(item)}
            planned = plan(offers, server.slices(), NODE, wishes)
            assert planned == plan(offers, server.slices(), NODE, wishes)
            before: dict[str, int] = {}
            for one in server.slices():
                if one.pool == NODE.name:
                    before[one.driver] = max(one.generation, before.get(one.driver, 0))
            touched = {write.driver for write in planned.writes if write.verb is not Verb.DELETE}
            server.act(planned)
            try:
                check(server, offers, planned, wishes)
                assert plan(offers, server.slices(), NODE, wishes).writes == ()
                assert {name: server.items.get(name) for name in strangers} == strangers
                for one in server.slices():
                    if one.labelled and one.driver in touched and before.get(one.driver, 0) < 2**63 - 1:
                        assert one.generation == before.get(one.driver, 0) + 1
            except AssertionError as error:
                error.add_note(f"example {number}: {[(write.verb, write.name) for write in planned.writes]}")
                raise
            seen["conflict"] += bool(planned.conflicts)
            seen["nothing to write"] += not planned.writes
            examples.one()
    print(dict(sorted(seen.items())))
    assert min(seen[what] for what in ("delete", "wipe", "edit", "label", "generation", "conflict")) >= FLOOR // 100


def _is_ours(item: Object) -> bool:
    labelled = (item["metadata"].get("labels") or {}).get(COMPONENT_LABEL) == COMPONENT
    return labelled or item["metadata"]["name"][-4:-3] == "-"
