"""The names of vGPU types by number, for one release of the driver: learned from every list that was read.

A card that is full shows empty lists, so after a restart nothing on the host says any more what its types are called.
The file lies on tmpfs and is for one release: another one numbers its types anew. It is a memory of what the driver
said, never of what ought to be; without it a type has no name, and is left alone.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from node_host.host import Host
from node_host.vgpu.driver import DriverLoad
from node_host.vgpu.types import VGPUType
from node_host.whole_file import read_if_there, write_whole

PATH: Final = "/run/npufleet/vgpu-types.json"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class TypeNames:
    """Names by PCI device id (`vendor:device`) and number, as the driver prints them, in the load `identity`."""

    identity: str = ""
    names: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def of(self, ids: str) -> Mapping[int, str]:
        """The names of one kind of card by number."""
        return self.names.get(ids, {})

    def with_types(self, ids: str, types: Iterable[VGPUType]) -> "TypeNames":
        """The same with these types; the same object when all were known."""
        known = self.of(ids)
        added = {kind.id: kind.name for kind in types if known.get(kind.id) != kind.name}
        if not added:
            return self
        return TypeNames(self.identity, {**self.names, ids: {**known, **added}})


def read_type_names(host: Host, load: DriverLoad) -> TypeNames:
    """What is remembered of this load; nothing when the file is of another one, damaged or not there. Never raises."""
    nothing = TypeNames(load.identity)
    try:
        data = read_if_there(host.local(PATH))
        content: Any = json.loads(data) if data is not None else None
    except (OSError, ValueError, RecursionError):
        return nothing
    if not isinstance(content, dict) or content.get("version") != VERSION or content.get("load") != load.identity:
        return nothing
    names = content.get("names")
    if not isinstance(names, dict):
        return nothing
    try:
        return TypeNames(
            load.identity,
            {
                str(ids): {int(number): str(name) for number, name in types.items()}
                for ids, types in names.items()
                if isinstance(types, dict)
            },
        )
    except ValueError:
        return nothing


def write_type_names(host: Host, names: TypeNames) -> None:
    """Keep them for this boot. Raises OSError."""
    by_ids = {ids: {str(number): types[number] for number in sorted(types)} for ids, types in names.names.items()}
    document = {"version": VERSION, "load": names.identity, "names": by_ids}
    write_whole(host.local(PATH), (json.dumps(document, sort_keys=True) + "\n").encode(), mode=0o600)
