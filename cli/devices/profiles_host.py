"""vGPU cards of one host, read from its sysfs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from cli.devices.profiles import Carried, ProfileRow
from cli.errors import CommandError, ExitCode
from node_host.boot import BootUnknownError, read_boot_id
from node_host.host import Host, open_host
from node_host.pci.device import DeviceGoneError, DeviceUnreadableError, list_addresses, read_device
from node_host.vgpu.driver import read_driver_load
from node_host.vgpu.functions import FunctionTypes, read_function
from node_host.vgpu.mdev import Mdev, read_mdevs, read_parent
from node_host.vgpu.type_names import read_type_names
from node_host.vgpu.types import profile_of


def read_profiles(root: Path) -> list[ProfileRow]:
    """The cards below `root` whose driver makes vGPUs. Raises CommandError when the host cannot be read."""
    if not root.is_dir():
        raise CommandError(f"--host-root {root} is no directory", ExitCode.USAGE)
    try:
        host = open_host(root)
        return list(_rows(host, read_boot_id(host)))
    except (BootUnknownError, DeviceGoneError, DeviceUnreadableError, OSError) as error:
        raise CommandError(f"{root} cannot be read as the root of a host: {error}") from error


def _rows(host: Host, boot_id: str) -> list[ProfileRow]:
    mdevs: dict[str, list[Mdev]] = defaultdict(list)
    for one in read_mdevs(host):
        mdevs[one.parent].append(one)
    cards: dict[str, list[str]] = defaultdict(list)
    for address in list_addresses(host):
        try:
            device = read_device(host, address)
        except (DeviceGoneError, DeviceUnreadableError, OSError):
            continue
        cards[device.physical_function or address].append(address)
    return [row for card in sorted(cards) if (row := _row(host, card, cards[card], mdevs, boot_id)) is not None]


def _row(host: Host, card: str, members: list[str], mdevs: dict[str, list[Mdev]], boot_id: str) -> ProfileRow | None:
    functions = [found for one in members if one != card and (found := read_function(host, one)) is not None]
    parents = [parent for one in members if (parent := read_parent(host, one)) is not None]
    if not functions and not parents:
        return None
    device = read_device(host, card)
    load = read_driver_load(host, device.driver, boot_id) if device.driver else None
    names = read_type_names(host, load).of(f"{device.vendor}:{device.device}") if load is not None else {}
    listed = {kind.id: kind.name for one in functions for kind in one.creatable}
    known = {**names, **listed}
    offered = {profile_of(name) for name in known.values()} | {kind.profile for one in parents for kind in one.types}
    carried = [_carried(one, known) for one in functions if one.current != 0 or one.fault]
    carried += [
        Carried(one.parent, one.profile or "", uuid=one.uuid) for parent in parents for one in mdevs[parent.address]
    ]
    faults = "; ".join(f"{one.address}: {one.fault}" for one in functions if one.fault)
    return ProfileRow("", card, load.release if load else "", tuple(sorted(offered)), tuple(carried), faults)


def _carried(one: FunctionTypes, known: dict[int, str]) -> Carried:
    return Carried(one.address, profile_of(known.get(one.current or 0, "")), "Failed" if one.fault else "")
