"""What a sandboxed node is told and given: configuration files, images and device nodes."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import tarfile
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.node_runtime import devices
from tests.node_runtime.configuration import (
    containerd_configuration,
    kubelet_configuration,
    kubelet_flags,
    network_configuration,
)
from tests.node_runtime.devices import DeviceMirror
from tests.node_runtime.images import BUSYBOX, PAUSE, write_archive
from tests.node_runtime.sandbox import ADDRESS, joining


def test_containerd_is_told_what_the_sandbox_needs() -> None:
    text = containerd_configuration(runc=Path("/cache/runc"), plugins=Path("/cache/cni"), network=Path("/etc/net"))
    told = tomllib.loads(text)
    runtime = told["plugins"]["io.containerd.cri.v1.runtime"]
    assert told["version"] == 4
    assert runtime["cdi_spec_dirs"] == ["/run/cdi"]
    assert runtime["restrict_oom_score_adj"] is True
    assert runtime["cni"] == {"bin_dirs": ["/cache/cni"], "conf_dir": "/etc/net"}
    assert runtime["containerd"]["runtimes"]["runc"]["options"] == {"BinaryName": "/cache/runc", "SystemdCgroup": False}
    assert told["plugins"]["io.containerd.cri.v1.images"]["pinned_images"] == {"sandbox": PAUSE.name}


def test_kubelet_listens_where_its_bridge_is_and_leaves_the_machine_alone() -> None:
    told = yaml.safe_load(kubelet_configuration())
    assert told["address"] == ADDRESS
    assert told["failSwapOn"] is False
    assert set(told["evictionHard"].values()) == {"0%"}
    flags = kubelet_flags(name="n", kubeconfig=Path("/k"), configuration=Path("/c"), labels={"b": "2", "a": "1"})
    assert "--node-labels=a=1,b=2" in flags
    assert f"--node-ip={ADDRESS}" in flags
    (bridge,) = json.loads(network_configuration())["plugins"]
    assert ADDRESS.rsplit(".", 1)[0] in bridge["ipam"]["ranges"][0][0]["subnet"]


def test_images_hold_the_program_under_all_its_names_and_are_the_same_each_time(tmp_path: Path) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_text('#!/bin/sh\nprintf "sh\\nbusybox\\nls\\n"\n')
    busybox.chmod(0o755)
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"
    for path in (first, second):
        write_archive(path, busybox, (PAUSE, BUSYBOX))
    assert first.read_bytes() == second.read_bytes()
    files = _files(first)
    index = json.loads(files["index.json"])
    assert [one["annotations"]["io.containerd.image.name"] for one in index["manifests"]] == [PAUSE.name, BUSYBOX.name]
    for manifest in index["manifests"]:
        content = json.loads(_blob(files, manifest))
        configuration = json.loads(_blob(files, content["config"]))
        layer = _blob(files, content["layers"][0])
        assert configuration["rootfs"]["diff_ids"] == [f"sha256:{sha256(layer).hexdigest()}"]
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            assert archive.getmember("bin/sh").linkname == archive.getmember("bin/ls").linkname == "busybox"
            assert archive.getmember("bin/busybox").isfile()


def _files(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        found = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: file.read() for name, file in found.items() if file is not None}


def _blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    digest = str(descriptor["digest"]).partition(":")[2]
    content = files[f"blobs/sha256/{digest}"]
    assert sha256(content).hexdigest() == digest
    assert len(content) == descriptor["size"]
    return content


def test_mirror_follows_the_machine_and_touches_no_node_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int, int]] = []

    def mknod(path: Path, mode: int, device: int) -> None:  # the call itself takes root
        made.append((path.name, mode, device))
        path.touch()

    monkeypatch.setattr(os, "mknod", mknod)
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "vfio").mkdir(parents=True)
    target.mkdir()
    (target / "null").touch()
    (source / "vfio/42").touch()
    mirror = DeviceMirror(source)
    assert mirror.update(target) == {"vfio/42"}
    assert made == [("42", stat.S_IFCHR | 0o660, os.makedev(devices.MAJOR, devices.MINOR))]
    assert mirror.update(target) == {"vfio/42"}
    assert len(made) == 1
    (source / "vfio/42").rename(source / "vfio/43")
    (source / "null").touch()  # the node has one of its own
    assert mirror.update(target) == {"vfio/43", "null"}
    assert sorted(path.name for path in target.rglob("*") if path.is_file()) == ["43", "null"]
    (source / "null").unlink()
    mirror.update(target)
    assert (target / "null").exists()


def test_command_enters_every_cgroup_before_it_runs(tmp_path: Path) -> None:
    doors = [tmp_path / "one procs", tmp_path / "two"]
    command = joining(doors, ["/bin/echo", "a  b", "--", "c"])
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "a  b -- c\n"
    assert [door.read_text() for door in doors] == ["0\n", "0\n"]
