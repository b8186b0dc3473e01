"""KubeVirt's permittedHostDevices follow from maps, policies and the catalogue, and doubts are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.main import main
from tests.builders.objects import device_rule, node_policy, profile_map

L40S_24 = {"profile": "L40S-24Q", "count": 2, "resourceName": "nvidia.com/L40S-24Q"}
L40S_48 = {"profile": "L40S-48Q", "count": 1, "resourceName": "nvidia.com/L40S-48Q"}


def card(*layout: dict[str, Any], products: tuple[str, ...] = ("L40S",), **more: Any) -> dict[str, Any]:
    return {"match": {"products": list(products)}, "layout": list(layout)} | more


class Repository:
    """Files below a directory, and the command run on them."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys = root, capsys
        self.objects = root / "objects"
        self.objects.mkdir()

    def put(self, *objects: dict[str, Any]) -> None:
        (self.objects / "fleet.yaml").write_text(yaml.safe_dump_all(objects))

    def run(self, *more: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, the block, stderr."""
        code = main(["kubevirt", "permitted-host-devices", str(self.objects), "-o", "json", *more])
        out, err = self.capsys.readouterr()
        return code, json.loads(out)["spec"]["configuration"]["permittedHostDevices"] if out else {}, err

    def existing(self, content: Any) -> str:
        file = self.root / "existing.yaml"
        file.write_text(yaml.safe_dump(content))
        return str(file)


@pytest.fixture
def repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Repository:
    return Repository(tmp_path, capsys)


def test_a_profile_on_virtual_functions_is_served_by_kubevirt_itself(repository: Repository) -> None:
    repository.put(profile_map(gpus=[card(L40S_24)]))
    code, block, err = repository.run("--strict")
    assert code == 0
    assert block == {"pciHostDevices": [{"pciVendorSelector": "10DE:26B9", "resourceName": "nvidia.com/L40S-24Q"}]}
    assert "warning" not in err
    assert "note: 10DE:26B9: L40S and its virtual functions have the same ids" in err


def test_whole_cards_have_the_name_of_the_plugin_that_serves_them(repository: Repository) -> None:
    repository.put(node_policy(rules=[device_rule(products=["TESLA_T4"], mode="Passthrough")]))
    _, block, _ = repository.run()
    entry = {"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/TU104GL_TESLA_T4"}
    assert block == {"pciHostDevices": [entry | {"externalResourceProvider": True}]}
    _, block, _ = repository.run("--passthrough-by", "kubevirt")
    assert block == {"pciHostDevices": [entry]}


def test_mediated_devices_are_named_as_the_driver_names_them(repository: Repository) -> None:
    layout = {"profile": "A40-24Q", "count": 2, "resourceName": "nvidia.com/A40-24Q"}
    repository.put(profile_map(gpus=[card(layout, products=("A40",), framework="Mdev")]))
    _, block, _ = repository.run()
    assert block == {"mediatedDevices": [{"mdevNameSelector": "NVIDIA A40-24Q", "resourceName": "nvidia.com/A40-24Q"}]}
    _, block, _ = repository.run("--mdev-vendor-word", "GRID")
    assert block["mediatedDevices"][0]["mdevNameSelector"] == "GRID A40-24Q"


def test_two_profiles_under_one_selector_are_warned_of_and_strict_refuses_them(repository: Repository) -> None:
    repository.put(profile_map("a", gpus=[card(L40S_24)]), profile_map("b", gpus=[card(L40S_48)]))
    code, block, err = repository.run()
    assert code == 0
    assert len(block["pciHostDevices"]) == 2
    assert "warning: 10DE:26B9 selects vGPUs of L40S-24Q, L40S-48Q: KubeVirt's own plugin cannot tell them" in err
    assert "DeviceClass" in err
    assert repository.run("--strict")[0] == 1


def test_whole_cards_and_vgpus_of_one_id_are_warned_of(repository: Repository) -> None:
    repository.put(profile_map(gpus=[card(L40S_24)]), node_policy(products=["L40S"]))
    code, block, err = repository.run("--strict")
    assert code == 1
    assert "both are given to VMs" in err
    assert [one.get("externalResourceProvider") for one in block["pciHostDevices"]] == [True, None]


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([profile_map(layout={"L40S-24Q": 2})], "L40S-24Q has no resourceName"),
        (
            [profile_map(gpus=[card(L40S_24), card(L40S_48 | {"resourceName": "nvidia.com/L40S-24Q"})])],
            "nvidia.com/L40S-24Q is the name of L40S-24Q, L40S-48Q",
        ),
        (
            [profile_map(gpus=[card(L40S_24 | {"profile": "A40-24Q"}, products=("A40",))])],
            "no public source tells the ids of virtual functions of A40",
        ),
        ([node_policy(products=["RBLN-CA25"])], "no resource name is known of RBLN-CA25"),
    ],
)
def test_what_is_left_out_or_in_doubt_is_told(repository: Repository, objects: list[dict[str, Any]], said: str) -> None:
    repository.put(*objects)
    code, _, err = repository.run("--strict")
    assert code == 1
    assert said in err


def test_a_block_that_is_there_is_kept_and_extended(repository: Repository) -> None:
    repository.put(profile_map(gpus=[card(L40S_24)]))
    old = {"pciVendorSelector": "8086:107c", "resourceName": "example.com/card"}
    usb = [{"resourceName": "example.com/key", "selectors": [{"vendor": "10c4", "product": "ea60"}]}]
    block = {"pciHostDevices": [old], "usb": usb}
    new = {"pciVendorSelector": "10DE:26B9", "resourceName": "nvidia.com/L40S-24Q"}
    for shape in (
        block,
        {"permittedHostDevices": block},
        {"kind": "KubeVirt", "spec": {"configuration": {"permittedHostDevices": block}}},
    ):
        given = repository.existing(shape)
        assert repository.run("--existing", given)[1] == {"pciHostDevices": [old, new], "usb": usb}
        assert repository.run("--existing", given, "--replace")[1] == {"pciHostDevices": [new], "usb": usb}
    again = repository.existing({"permittedHostDevices": {"pciHostDevices": [old, new]}})
    assert repository.run("--existing", again)[1] == {"pciHostDevices": [old, new]}


def test_a_name_that_the_block_gives_to_something_else_is_told(repository: Repository) -> None:
    repository.put(profile_map(gpus=[card(L40S_24)]))
    other = {"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/L40S-24Q"}
    given = repository.existing({"pciHostDevices": [other]})
    assert "nvidia.com/L40S-24Q is the name of 10DE:1EB8 already" in repository.run("--existing", given)[2]


def test_the_order_of_files_changes_nothing(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    objects = [
        profile_map("a", gpus=[card(L40S_24)]),
        profile_map("b", gpus=[card(L40S_48)]),
        node_policy(products=["A100_PCIE_40GB", "TESLA_T4"]),
    ]
    repository.put(*objects)
    first = repository.run()
    repository.put(*reversed(objects))
    assert repository.run() == first
    assert len(first[1]["pciHostDevices"]) == 5


def test_files_with_faults_give_no_block(repository: Repository) -> None:
    repository.put(profile_map(gpus=[card(L40S_24 | {"count": "two"})]))
    code, block, err = repository.run()
    assert (code, block) == (1, {})
    assert "npufleet lint" in err
    assert "count" in err


def test_two_objects_of_one_name_are_not_merged(repository: Repository) -> None:
    repository.put(profile_map("a", gpus=[card(L40S_24)]), profile_map("a", gpus=[card(L40S_48)]))
    code, block, err = repository.run()
    assert (code, block) == (1, {})
    assert "VGPUProfileMap/a is in" in err


def test_rows_of_both_outputs_say_the_same(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    repository.put(profile_map(gpus=[card(L40S_24)]))
    _, block, _ = repository.run()
    assert main(["kubevirt", "permitted-host-devices", str(repository.objects)]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed == {"spec": {"configuration": {"permittedHostDevices": block}}}
    assert "pciVendorSelector" in block["pciHostDevices"][0]
