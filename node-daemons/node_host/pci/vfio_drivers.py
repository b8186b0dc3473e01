"""Which VFIO driver a device wants: a variant that the kernel names for it, else vfio-pci.

Since Linux 5.16 variant drivers carry override-only ids; depmod writes them to modules.alias as
`alias vfio_pci:… module` (Documentation/driver-api/vfio.rst, scripts/mod/file2alias.c). The pattern with the fewest
wildcards is the nearest one. Which modules there are stands in modules.dep and modules.builtin (depmod(8)).
"""

import fnmatch
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from node_host.host import Host

VFIO_PCI: Final = "vfio-pci"
_ALIAS: Final = re.compile(r"^alias[ \t]+vfio_pci:(\S+)[ \t]+(\S+)[ \t]*$", re.MULTILINE)
_MODULE: Final = re.compile(r"^(?:[^:\n]*/)?([^:/\n]+)\.ko(?:\.[a-z0-9]+)?(?::|[ \t]*$)", re.MULTILINE)
_MAX_ALIASES: Final = 10000


def module_of(driver: str) -> str:
    """Modules are named with underscores whatever the directory of their driver is called."""
    return driver.replace("-", "_")


@lru_cache(maxsize=256)
def is_vfio_driver(driver: str | None) -> bool:
    """Whether it is vfio-pci or one of its variants, all of which carry `vfio` as a word of their name."""
    return driver is not None and "vfio" in module_of(driver).split("_")


@dataclass(frozen=True, slots=True)
class VFIOAliases:
    """Patterns (without prefix) and modules, as modules.alias has them; ``modules`` are all, none where not known."""

    entries: tuple[tuple[str, str], ...] = ()
    modules: frozenset[str] = frozenset()

    def lacks(self, module: str) -> bool:
        """Whether the kernel certainly has no such module."""
        return bool(self.modules) and module_of(module) not in self.modules

    def module_for(self, modalias: str) -> str | None:
        """The variant module for a device's modalias (`pci:v…`); None when vfio-pci itself is the one."""
        wanted = modalias.partition(":")[2]
        fitting = [
            (pattern.count("*"), module) for pattern, module in self.entries if fnmatch.fnmatchcase(wanted, pattern)
        ]
        module = min(fitting, default=(0, None))[1]
        return None if module == module_of(VFIO_PCI) else module


def parse_aliases(text: str) -> VFIOAliases:
    """The `vfio_pci:` lines of a modules.alias; anything else in the file is not for us."""
    # One search: a module tree has tens of thousands of other lines.
    return VFIOAliases(tuple(_ALIAS.findall(text)[:_MAX_ALIASES]))


def read_aliases(host: Host) -> VFIOAliases:
    """Of the running kernel; none when the host has no module tree (then vfio-pci is the driver)."""
    try:
        release = host.read("/proc/sys/kernel/osrelease").decode("ascii", "replace").strip()
        aliases = parse_aliases(host.read(f"/lib/modules/{release}/modules.alias").decode("utf-8", "replace"))
    except OSError:
        return VFIOAliases()
    try:
        lists = [host.read(f"/lib/modules/{release}/{name}") for name in ("modules.dep", "modules.builtin")]
    except OSError:
        return aliases
    return replace(aliases, modules=parse_modules(b"\n".join(lists).decode("utf-8", "replace")))


def parse_modules(text: str) -> frozenset[str]:
    """Names of the modules whose files stand first in each line."""
    return frozenset(module_of(name) for name in _MODULE.findall(text))


def driver_directory(module: str, registered: frozenset[str]) -> str | None:
    """The directory of a module's driver below /sys/bus/pci/drivers: the same words, joined by `-` or `_`."""
    return next((name for name in sorted(registered) if module_of(name) == module_of(module)), None)
