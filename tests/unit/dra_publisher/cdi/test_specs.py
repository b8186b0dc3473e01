"""CDI specifications: valid, each node once, and names that never mean another thing."""

from __future__ import annotations

import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_publisher.cdi.specs import GivenDevice, claim_specs

_EXAMPLES = 2000
UID = "6f0f7d1e-0000-4000-8000-000000000001"
# Container Device Interface specification: vendor/class=device.
_ID = re.compile(
    r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
)


def given_device(number: int, *nodes: str, kind: str = "vfio") -> GivenDevice:
    return GivenDevice(f"{kind}-0000-{number:02x}-00-0", kind, f"0000:{number:02x}:00.0", nodes)


def test_the_names_and_files_are_those_of_every_version() -> None:
    """What a kubelet was told outlives a version: a file that is made again has to have the names that it had."""
    specs = claim_specs(
        "npufleet.io",
        UID,
        [
            given_device(0x25, "/dev/vfio/24", "/dev/vfio/vfio"),
            given_device(0x26, "/dev/vfio/24", "/dev/vfio/vfio"),
            given_device(0x2B, "/dev/rbln0", kind="npu"),
        ],
    )
    assert specs.ids == {
        "npu-0000-2b-00-0": (f"k8s.npufleet.io/npu={UID}-171f9af6-npu-0000-2b-00-0",),
        "vfio-0000-25-00-0": (
            f"k8s.npufleet.io/vfio={UID}-24b8612f-vfio-0000-25-00-0",
            f"k8s.npufleet.io/vfio={UID}-24b8612f-shared-0",
        ),
        "vfio-0000-26-00-0": (
            f"k8s.npufleet.io/vfio={UID}-24b8612f-vfio-0000-26-00-0",
            f"k8s.npufleet.io/vfio={UID}-24b8612f-shared-0",
        ),
    }
    assert [file.name for file in specs.files] == [
        f"k8s.npufleet.io-npu_{UID}.json",
        f"k8s.npufleet.io-vfio_{UID}.json",
    ]
    assert json.loads(specs.files[1].content) == {
        "cdiVersion": "0.5.0",
        "kind": "k8s.npufleet.io/vfio",
        "devices": [
            {
                "name": f"{UID}-24b8612f-vfio-0000-25-00-0",
                "containerEdits": {"env": ["NPUFLEET_DEVICE_VFIO_0000_25_00_0=0000:25:00.0"]},
            },
            {
                "name": f"{UID}-24b8612f-vfio-0000-26-00-0",
                "containerEdits": {"env": ["NPUFLEET_DEVICE_VFIO_0000_26_00_0=0000:26:00.0"]},
            },
            {
                "name": f"{UID}-24b8612f-shared-0",
                "containerEdits": {
                    "deviceNodes": [
                        {"path": "/dev/vfio/24", "permissions": "rw"},
                        {"path": "/dev/vfio/vfio", "permissions": "rw"},
                    ]
                },
            },
        ],
    }


def test_every_device_gets_its_nodes_and_no_other_and_each_is_listed_once() -> None:
    nodes = st.sets(st.sampled_from([f"/dev/vfio/{number}" for number in (1, 2, 3)] + ["/dev/vfio/vfio", "/dev/iommu"]))
    devices = st.dictionaries(st.integers(0, 7), st.tuples(nodes, st.sampled_from(["vfio", "npu"])), max_size=8)
    names: dict[str, str] = {}
    ran = 0

    @settings(max_examples=_EXAMPLES, deadline=None, database=None)
    @given(devices)
    def check(wanted: dict[int, tuple[set[str], str]]) -> None:
        nonlocal ran
        ran += 1
        given_devices = [
            given_device(number, *sorted(paths), kind=kind) for number, (paths, kind) in sorted(wanted.items())
        ]
        specs = claim_specs("npufleet.io", UID, given_devices)
        assert claim_specs("npufleet.io", UID, reversed(given_devices)) == specs
        edits = {}
        for file in specs.files:
            spec = json.loads(file.content)
            listed = []
            for device in spec["devices"]:
                name = f"{spec['kind']}={device['name']}"
                assert _ID.fullmatch(name) and device["containerEdits"]
                edits[name] = device["containerEdits"]
                # A runtime has read it once: it must mean the same for ever.
                assert names.setdefault(name, json.dumps(device)) == json.dumps(device)
                listed += [node["path"] for node in device["containerEdits"].get("deviceNodes", ())]
            assert len(listed) == len(set(listed))
        for device in given_devices:
            mine = [edits[name] for name in specs.ids[device.device]]
            assert sorted(node["path"] for one in mine for node in one.get("deviceNodes", ())) == sorted(device.nodes)
            assert len([variable for one in mine for variable in one.get("env", ())]) == 1

    check()
    print(f"{ran} examples")
    assert ran >= _EXAMPLES
