"""`npufleet devices profiles`: what drivers offer, and whether another release knows the profiles of the maps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from cli.devices.profiles import NamesError, parse_names, rows_of_state
from cli.devices.profiles_cluster import read_maps, read_rows
from cli.main import main
from runtime.resources import NPU_NODE_STATES, VGPU_PROFILE_MAPS
from tests.builders.fake_api import FakeApi
from tests.builders.objects import node_state, profile_map, report

CARD, VF = "0000:02:00.0", "0000:02:00.5"
LIST = "ID    : vGPU Name\n1155  : NVIDIA L40S-24Q\n1156  : NVIDIA L40S-48Q\n"
REPORTED = {
    "address": CARD,
    "state": "Ready",
    "reason": "Carved",
    "message": "",
    "offered": ["L40S-24Q", "L40S-48Q"],
    "driverRelease": "595.58.02",
    "vgpus": [{"address": VF, "profile": "L40S-24Q", "state": "Ready", "reason": "Typed", "users": ["VM a/b"]}],
}


@pytest.mark.parametrize(
    "text",
    [
        LIST,
        LIST.replace("ID    : vGPU Name\n", ""),
        "# of the new release\nL40S-24Q\n\n  L40S-48Q\n",
        "NVIDIA L40S-24Q\nGRID L40S-48Q\n",
        json.dumps({"cards": [{"offered": ["L40S-24Q"]}, {"offered": ["L40S-48Q"]}]}),
        json.dumps(["NVIDIA L40S-24Q", "L40S-48Q"]),
    ],
)
def test_names_are_read_from_each_shape(text: str) -> None:
    assert parse_names(text) == {"L40S-24Q", "L40S-48Q"}


@pytest.mark.parametrize(
    "text", ["", "ID    : vGPU Name\n", "{", "{}", '{"cards": [{"offered": 3}]}', '{"cards": []}', f"{LIST}garbage\n"]
)
def test_a_file_that_names_nothing_proves_nothing(text: str) -> None:
    with pytest.raises(NamesError):
        parse_names(text)


def checked(tmp_path: Path, text: str, *more: str) -> int:
    (tmp_path / "names").write_text(text)
    maps = tmp_path / "maps"
    maps.mkdir(exist_ok=True)
    (maps / "map.yaml").write_text(yaml.safe_dump(profile_map("halves", layout={"L40S-24Q": 2})))
    return main(["devices", "profiles", "--check", str(tmp_path / "names"), "--maps", str(maps), *more])


def test_a_release_that_knows_all_profiles_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path, LIST) == 0
    assert capsys.readouterr().out == "1 maps, 2 profiles offered: none unknown\n"


def test_a_profile_that_the_release_drops_is_named_with_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(tmp_path, "L40S-24C\nL40S-48Q\n") == 1
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(
        "VGPUProfileMap/halves: spec.gpus[0].layout[0].profile: L40S-24Q is not offered; the nearest"
    )
    assert "L40S-24C" in line
    assert checked(tmp_path, "L40S-24C\n", "-o", "json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["maps"] == ["halves"]
    assert found["unknown"][0]["nearest"] == ["L40S-24C"]


def test_names_differ_by_case(tmp_path: Path) -> None:
    assert checked(tmp_path, "l40s-24q\n") == 1


def test_a_file_without_names_is_wrong_usage_and_not_a_pass(tmp_path: Path) -> None:
    assert checked(tmp_path, "ID    : vGPU Name\n") == 2


async def test_cards_and_maps_are_read_from_the_cluster() -> None:
    async with FakeApi() as server:
        server.objects.create(NPU_NODE_STATES, node_state("node-a", profiles=report([REPORTED])))
        server.objects.create(NPU_NODE_STATES, node_state("node-b"))
        server.objects.create(VGPU_PROFILE_MAPS, profile_map("halves"))
        (row,) = await read_rows(server.kubeconfig())
        (found,) = await read_maps(server.kubeconfig())
    assert (row.node, row.address, row.release) == ("node-a", CARD, "595.58.02")
    assert row.offered == ("L40S-24Q", "L40S-48Q")
    assert [(one.address, one.profile, one.users) for one in row.carried] == [(VF, "L40S-24Q", ("VM a/b",))]
    assert found.metadata.name == "halves"


def test_a_card_that_is_not_ready_says_why() -> None:
    state = node_state(profiles=report([REPORTED | {"state": "Failed", "reason": "NoRoom", "message": "full"}]))
    assert rows_of_state(state)[0].reason == "NoRoom: full"


def host(root: Path) -> None:
    def put(path: str, text: str) -> None:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    put("proc/sys/kernel/random/boot_id", "6f1bd7e0-6a3e-4bd6-9d0f-0d4e0a2b9c11\n")
    put("sys/module/nvidia/version", "595.58.02\n")
    driver = root / "sys/bus/pci/drivers/nvidia"
    driver.mkdir(parents=True)
    for address, current, listed in ((CARD, None, ""), ("0000:02:00.4", "0\n", LIST), (VF, "1155\n", "")):
        here = f"sys/devices/pci0000:00/{address}"
        for name, text in (("vendor", "0x10de"), ("device", "0x26b9"), ("class", "0x030200"), ("modalias", "pci:x")):
            put(f"{here}/{name}", f"{text}\n")
        if current is not None:
            put(f"{here}/nvidia/current_vgpu_type", current)
            put(f"{here}/nvidia/creatable_vgpu_types", listed)
            (root / here / "physfn").symlink_to(f"../{CARD}")
        (root / here / "driver").symlink_to("../../../bus/pci/drivers/nvidia")
        link = root / "sys/bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../devices/pci0000:00/{address}")


def test_a_host_tells_from_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host(tmp_path)
    assert main(["devices", "profiles", "--host-root", str(tmp_path), "-o", "json"]) == 0
    text = capsys.readouterr().out
    (card,) = json.loads(text)["cards"]
    assert (card["address"], card["driverRelease"]) == (CARD, "595.58.02")
    assert card["offered"] == ["L40S-24Q", "L40S-48Q"]
    assert [(one["address"], one["profile"]) for one in card["vgpus"]] == [(VF, "L40S-24Q")]
    assert checked(tmp_path, text) == 0


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    assert main(["devices", "profiles", "--maps", str(tmp_path)]) == 2
    assert main(["devices", "profiles", "--check", "x", "--host-root", str(tmp_path)]) == 2
