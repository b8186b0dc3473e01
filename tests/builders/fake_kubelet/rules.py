"""What a plugin may say of itself, by the protocol and not by what ours says."""

import re
import stat
from pathlib import Path

from kubelet_api.registration_pb2 import PluginInfo

DRA = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
SUN_PATH = 107

_DRIVER = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_BASE64 = r"[-_A-Za-z0-9]"


def violations(info: PluginInfo, registration: str, root: Path, kubelet: str) -> list[str]:
    """What is wrong with a plugin that was found at ``registration`` (a host path)."""
    found = []
    if info.type != "DRAPlugin":
        found.append(f"type {info.type!r}")
    if len(info.name) > 63 or not _DRIVER.fullmatch(info.name):
        found.append(f"name {info.name!r}")
    found += _of_versions(list(info.supported_versions))
    found += _of_path(registration, root)
    found += _of_path(info.endpoint, root)
    if registration.rpartition("/")[0] != f"{kubelet}/plugins_registry":
        found.append(f"registration socket {registration}")
    if info.endpoint.rpartition("/")[0] != f"{kubelet}/plugins/{info.name}":
        found.append(f"endpoint {info.endpoint!r} of {info.name}")
    if not re.fullmatch(rf"dra(-{_BASE64}+)?\.sock", info.endpoint.rpartition("/")[2]):
        found.append(f"endpoint's name {info.endpoint!r}")
    if not re.fullmatch(
        rf"({re.escape(info.name)}(-{_BASE64}+)?|dra-{_BASE64}{{22}})-reg\.sock", registration.rpartition("/")[2]
    ):
        found.append(f"registration socket's name {registration!r}")
    return found


def _of_versions(versions: list[str]) -> list[str]:
    found = []
    if len(set(versions)) != len(versions):
        found.append(f"supported versions twice: {versions}")
    if unknown := set(versions) - {*DRA, *HEALTH}:
        found.append(f"supported versions {sorted(unknown)}")
    for family in (DRA, HEALTH):
        mine = [version for version in versions if version in family]
        if mine != sorted(mine, key=family.index):
            found.append(f"supported versions out of order: {versions}")  # the kubelet takes the first that it knows
    return found


def _of_path(path: str, root: Path) -> list[str]:
    if not path.startswith("/") or "//" in path or "/." in path:
        return [f"path {path!r} is not plain and absolute"]
    found = []
    if len(path.encode()) > SUN_PATH:
        found.append(f"path {path!r} is longer than {SUN_PATH} bytes")
    try:
        mode = (root / path.removeprefix("/")).lstat().st_mode
    except OSError as error:
        return [*found, f"path {path!r}: {error.strerror}"]
    if not stat.S_ISSOCK(mode):
        found.append(f"path {path!r} is no socket")
    if stat.S_IMODE(mode) & 0o077:
        found.append(f"socket {path!r} is open to others")
    return found
