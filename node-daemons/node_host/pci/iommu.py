"""IOMMU groups: which devices the hardware cannot tell apart, hence go to a VM together or not at all.

Source: Documentation/ABI/testing/sysfs-kernel-iommu_groups. Group numbers move over a reboot: they are never identity.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from node_host.host import Host

GROUPS: Final = "/sys/kernel/iommu_groups"


@dataclass(frozen=True, slots=True)
class IOMMUGroups:
    """Members by group number; ``unreadable`` says for a group, or for all (key None), why they are not known."""

    members: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    unreadable: Mapping[int | None, str] = field(default_factory=dict)

    def of(self, group: int | None) -> tuple[str, ...]:
        """Members of a group, sorted; names that are no PCI addresses are devices of other buses."""
        return () if group is None else self.members.get(group, ())

    def fault(self, group: int | None) -> str | None:
        """Why the members of the group are not known, or None. A group that a device names and nobody lists is one."""
        if group is None:
            return None
        if group in self.members:
            return None
        return self.unreadable.get(group) or self.unreadable.get(None) or f"{GROUPS}/{group}/devices: not there"


def read_groups(host: Host) -> IOMMUGroups:
    """All groups; without an IOMMU there are none. Never raises: what cannot be read is in ``unreadable``."""
    try:
        names = host.list(GROUPS)
    except FileNotFoundError:
        return IOMMUGroups()
    except OSError as error:
        return IOMMUGroups(unreadable={None: f"{GROUPS}: {error.strerror or error}"})
    members: dict[int, tuple[str, ...]] = {}
    unreadable: dict[int | None, str] = {}
    for name in names:
        if not name.isdecimal():
            continue
        path = f"{GROUPS}/{name}/devices"
        try:
            members[int(name)] = tuple(sorted(host.list(path)))
        except FileNotFoundError:
            continue
        except OSError as error:
            unreadable[int(name)] = f"{path}: {error.strerror or error}"
    return IOMMUGroups(members, unreadable)
