"""What a host has of its GPU vendor's software, read from files alone: nothing is run, nothing is changed.

Source of what to look for: cozystack, GPU guide (host preparation, clean-host workaround); NVIDIA/k8s-driver-manager,
issue 191.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field
from typing import Final

from node_host.host import Host

PACKAGES: Final = ("nvidia-*", "libnvidia-*", "cuda-*")
_NETWORK: Final = re.compile(r"mellanox|doca|ofed|infiniband|rdma", re.IGNORECASE)
_PROGRAMS: Final = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin")
_IMAGES: Final = ("initrd.img-*", "initramfs-*.img", "initrd-*")
_BLACKLIST: Final = re.compile(
    r"^\s*blacklist\s+(\S+)|^\s*install\s+(\S+)\s+(?:/usr)?/s?bin/(?:false|true)\b", re.MULTILINE
)
_SERVICE: Final = re.compile(r"([^/\s]+\.service)")


@dataclass(frozen=True, slots=True)
class HostSoftware:
    """`modules` that are loaded; `dkms` names below /var/lib/dkms; `packages` that are installed, `of_network` those of
    them that belong to network cards of the same vendor; `programs` by name with their paths; `blacklisted` modules,
    and when a file that says so was last changed (seconds); `images` of initramfs by name with their times. `unread`:
    what could not be read, in words.
    """

    modules: frozenset[str] = frozenset()
    dkms: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    of_network: tuple[str, ...] = ()
    programs: dict[str, str] = field(default_factory=dict)
    blacklisted: frozenset[str] = frozenset()
    blacklist_changed: float | None = None
    images: dict[str, float] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


def read_software(host: Host) -> HostSoftware:
    """Never raises; what cannot be read is said to be so."""
    reader = _Reader(host)
    packages, network = reader.packages()
    blacklisted, changed = reader.blacklist()
    return HostSoftware(
        modules=reader.modules(),
        dkms=tuple(name for name in reader.names("/var/lib/dkms") if name.startswith("nvidia")),
        packages=packages,
        of_network=network,
        programs=reader.programs(("nvidia-smi", "nvidia-uninstall")),
        blacklisted=blacklisted,
        blacklist_changed=changed,
        images=reader.images(),
        unread=tuple(reader.unread),
    )


def service_of(host: Host, pid: int) -> str | None:
    """The systemd service that a process is of, None when it is of none."""
    try:
        text = host.read(f"/proc/{pid}/cgroup").decode("utf-8", "replace")
    except OSError:
        return None
    found = _SERVICE.findall(text)
    return found[-1] if found else None


class _Reader:
    def __init__(self, host: Host) -> None:
        self._host = host
        self.unread: list[str] = []

    def modules(self) -> frozenset[str]:
        text = self._text("/proc/modules")
        return frozenset(line.split()[0] for line in text.splitlines() if line.strip())

    def packages(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        ours: list[str] = []
        network: list[str] = []
        for stanza in self._text("/var/lib/dpkg/status").split("\n\n"):
            fields = dict(re.findall(r"^(\S+):\s*(.*)$", stanza, re.MULTILINE))
            name = fields.get("Package", "")
            if not fields.get("Status", "").endswith(" installed"):
                continue
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in PACKAGES):
                (network if _NETWORK.search(stanza) else ours).append(name)
        return tuple(sorted(ours)), tuple(sorted(network))

    def programs(self, names: tuple[str, ...]) -> dict[str, str]:
        found = {}
        for name in names:
            for folder in _PROGRAMS:
                if name not in found and self._host.exists(f"{folder}/{name}"):
                    found[name] = f"{folder}/{name}"
        return found

    def blacklist(self) -> tuple[frozenset[str], float | None]:
        found: set[str] = set()
        changed: float | None = None
        for name in self.names("/etc/modprobe.d"):
            path = f"/etc/modprobe.d/{name}"
            if not name.endswith(".conf"):
                continue
            here = {(one or other).replace("-", "_") for one, other in _BLACKLIST.findall(self._text(path))}
            if any(word.startswith(("nvidia", "nouveau")) for word in here):
                changed = max(changed or 0.0, self._changed(path))
            found |= here
        return frozenset(found), changed

    def images(self) -> dict[str, float]:
        names = [name for name in self.names("/boot") if any(fnmatch.fnmatchcase(name, one) for one in _IMAGES)]
        return {name: self._changed(f"/boot/{name}") for name in names}

    def names(self, path: str) -> list[str]:
        try:
            return self._host.list(path)
        except FileNotFoundError:
            return []
        except OSError as error:
            self.unread.append(f"{path}: {error.strerror or error}")
            return []

    def _text(self, path: str) -> str:
        try:
            return self._host.read(path).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            self.unread.append(f"{path}: {error.strerror or error}")
            return ""

    def _changed(self, path: str) -> float:
        try:
            return self._host.stat(path).st_mtime
        except OSError as error:
            self.unread.append(f"{path}: {error.strerror or error}")
            return 0.0
