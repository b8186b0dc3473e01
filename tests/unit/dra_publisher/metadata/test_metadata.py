"""KEP-5304 metadata: the documents, their generation, and whose file it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dra_publisher.metadata.documents import (
    DescribedClaim,
    DescribedDevice,
    encode,
    generation_of,
    owner_of,
    requests_of,
)
from dra_publisher.metadata.files import MetadataFiles
from node_host.host.kernel_files import KernelFiles

DEVICE = DescribedDevice("npu", "node-atom", "vfio-0000-27-00-0", "0000:27:00.0")
CLAIM = DescribedClaim("npufleet.io", "0a", "team-a", "vm", "", (DEVICE,))
WHERE = "var/lib/kubelet/plugins/npufleet.io/dra-device-metadata/team-a_vm/npu/metadata.json"


def test_the_file_has_one_object_a_line_the_newest_version_first() -> None:
    (request,) = requests_of(CLAIM)
    assert encode(request.documents, 3).decode() == "".join(
        json.dumps(
            {
                "kind": "DeviceMetadata",
                "apiVersion": f"metadata.resource.k8s.io/{version}",
                "metadata": {"name": "vm", "namespace": "team-a", "uid": "0a", "generation": 3},
                "requests": [
                    {
                        "name": "npu",
                        "devices": [
                            {
                                "driver": "npufleet.io",
                                "pool": "node-atom",
                                "name": "vfio-0000-27-00-0",
                                "attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:27:00.0"}},
                            }
                        ],
                    }
                ],
            },
            separators=(",", ":"),
        )
        + "\n"
        for version in ("v1beta1", "v1alpha1")
    )


def test_the_container_device_mounts_it_read_only() -> None:
    (request,) = requests_of(replace(CLAIM, pod_claim_name="npu-of-pod"))
    assert request.cdi_id == "npufleet.io/metadata=0a_npu"
    assert request.cdi_name == "npufleet.io_metadata_0a_npu.json"
    assert json.loads(request.cdi_content) == {
        "cdiVersion": "0.5.0",
        "kind": "npufleet.io/metadata",
        "devices": [
            {
                "name": "0a_npu",
                "containerEdits": {
                    "mounts": [
                        {
                            "hostPath": f"/{WHERE}",
                            "containerPath": "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/"
                            "npu-of-pod/npu/npufleet.io-metadata.json",
                            "options": ["ro", "bind"],
                        }
                    ]
                },
            }
        ],
    }


def test_the_generation_moves_with_the_content_alone() -> None:
    (request,), (other,) = requests_of(CLAIM), requests_of(replace(CLAIM, devices=(replace(DEVICE, device="npu-x"),)))
    data = encode(request.documents, 4)
    assert generation_of(data, request.documents) == 4
    assert generation_of(data, other.documents) == 5
    for broken in (
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"metadata":{"generation":"4"}}',
        b'{"metadata":{"generation":0}}',
        b"\xff",
    ):
        assert generation_of(broken, request.documents) == 1
    assert owner_of(data) == "0a"
    assert owner_of(b"[1]") is None and owner_of(b'{"metadata":{"uid":7}}') is None


@pytest.fixture
def files(tmp_path: Path) -> MetadataFiles:
    return MetadataFiles(KernelFiles(tmp_path))


def test_a_file_that_changes_gets_the_next_generation(files: MetadataFiles, tmp_path: Path) -> None:
    files.write(requests_of(CLAIM))
    path = tmp_path / WHERE
    assert json.loads(path.read_bytes().splitlines()[0])["metadata"]["generation"] == 1
    inode = path.stat().st_ino
    files.write(requests_of(CLAIM))
    assert path.stat().st_ino == inode
    files.write(requests_of(replace(CLAIM, devices=(replace(DEVICE, address="0000:28:00.0"),))))
    assert json.loads(path.read_bytes().splitlines()[1])["metadata"]["generation"] == 2


def test_a_claim_made_anew_under_the_name_keeps_its_file_when_the_old_one_goes(
    files: MetadataFiles, tmp_path: Path
) -> None:
    files.write(requests_of(CLAIM))
    files.write(requests_of(replace(CLAIM, uid="0b")))
    files.remove("npufleet.io", "team-a", "vm", "0a")
    assert owner_of((tmp_path / WHERE).read_bytes()) == "0b"
    files.remove("npufleet.io", "team-a", "vm", "0b")
    assert not (tmp_path / WHERE).parent.parent.exists()
    files.remove("npufleet.io", "team-a", "vm", "0b")
