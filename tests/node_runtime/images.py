"""Container images made of a static program, so that a node runs pods without any registry.

The archive is an OCI image layout (image-spec v1): `ctr images import` reads it. The same program gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# What the program is called by in the containers; busybox tells its many names apart by this.
_PROGRAM = "bin/busybox"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True, slots=True)
class Image:
    """A name as pods give it (with registry and tag), and what its containers run when the pod says nothing."""

    name: str
    command: tuple[str, ...]


PAUSE = Image("localhost/npufleet/pause:1", ("/bin/busybox", "sleep", "2147483647"))
BUSYBOX = Image("localhost/npufleet/busybox:1", ("/bin/sh",))


def write_archive(path: Path, busybox: Path, images: Sequence[Image]) -> None:
    """Images that all hold busybox under all of its names."""
    applets = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True).stdout.split()
    layer = _layer(busybox.read_bytes(), sorted(set(applets) - {"busybox"}))
    blobs = [layer]
    manifests = []
    for image in images:
        configuration = _json(
            {
                "architecture": _architecture(),
                "os": "linux",
                "config": {"Cmd": list(image.command), "Env": ["PATH=/bin"], "WorkingDir": "/"},
                "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            }
        )
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _descriptor(_CONFIG, configuration),
                "layers": [_descriptor(_LAYER, layer)],
            }
        )
        blobs += [configuration, manifest]
        name = {"io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": image.name}
        manifests.append({**_descriptor(_MANIFEST, manifest), "annotations": name})
    index = _json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests})
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": index}
    files |= {f"blobs/sha256/{_digest(blob).partition(':')[2]}": blob for blob in blobs}
    with tarfile.open(path, "w") as archive:
        for file, content in files.items():
            archive.addfile(_entry(file, len(content), 0o644), io.BytesIO(content))


def _layer(program: bytes, names: Sequence[str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as layer:
        for directory in ("bin", "dev", "etc", "proc", "sys", "tmp", "var"):
            layer.addfile(_entry(directory, 0, 0o755, tarfile.DIRTYPE))
        layer.addfile(_entry(_PROGRAM, len(program), 0o755), io.BytesIO(program))
        for name in names:
            link = _entry(f"bin/{name}", 0, 0o777, tarfile.SYMTYPE)
            link.linkname = "busybox"
            layer.addfile(link)
        for file, text in {"etc/passwd": "root:x:0:0:root:/:/bin/sh\n", "etc/group": "root:x:0:\n"}.items():
            layer.addfile(_entry(file, len(text), 0o644), io.BytesIO(text.encode()))
    return out.getvalue()


def _entry(name: str, size: int, mode: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.type, entry.mtime = size, mode, kind, 0
    return entry


def _architecture() -> str:
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _descriptor(kind: str, content: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
