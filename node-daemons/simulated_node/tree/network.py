"""Net devices, their addresses and routes, in the files where a real host has them.

Which interface has which address: IPv6 in /proc/1/net/if_inet6 (address and name). IPv4 addresses stand in
/proc/1/net/fib_trie without their interface; /proc/1/net/route gives the connected network of each interface that is
up, and the default route. /proc/1, because /proc/net is the reader's own network namespace.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Interface, IPv6Address, IPv6Interface

from simulated_node.description import Interface, InterfaceKind, LinkState
from simulated_node.model.nodes import drives_function
from simulated_node.model.state import Device, Machine
from simulated_node.model.topology import devpath
from simulated_node.rules.registry import rule
from simulated_node.tree.entries import READ_WRITE, Memory, TreeBuilder

UNDRIVEN_CARD = rule(
    "host.no-driver-no-interface",
    "A network card has net devices only while its native driver holds it: bound to vfio it takes its addresses along.",
    source="drivers/net: register_netdev in probe, unregister_netdev in remove",
)

_UP = 0x1
_GATEWAY = 0x2
_IFF_BROADCAST_MULTICAST = 0x1002
_LOOPBACK = Interface(name="lo", mac_address="00:00:00:00:00:00", addresses=("127.0.0.1/8", "::1/128"))


@dataclass(frozen=True, slots=True)
class _Placed:
    index: int
    path: str
    interface: Interface


def render_network(out: TreeBuilder, machine: Machine, memory: Memory) -> None:
    here = {
        devpath(device): device.description.interfaces
        for device in machine.devices.values()
        if device.description.interfaces and _is_driven(machine, device)
    }
    memory.add(out, "network", here, partial(_render_all, machine=machine, cards=here))


def _is_driven(machine: Machine, card: Device) -> bool:
    if drives_function(machine, card):
        return True
    UNDRIVEN_CARD.fires()
    return False


def _render_all(out: TreeBuilder, machine: Machine, cards: Mapping[str, Sequence[Interface]]) -> None:
    """``cards``: the interfaces of those that are driven, by their paths below /sys."""
    out.directory("/sys/class/net")
    placed = [_Placed(1, "/sys/devices/virtual/net/lo", _LOOPBACK)]
    for interface in machine.description.virtual_interfaces:
        placed.append(_Placed(len(placed) + 1, f"/sys/devices/virtual/net/{interface.name}", interface))
    for card, interfaces in cards.items():
        for interface in interfaces:
            path = f"/sys{card}/net/{interface.name}"
            placed.append(_Placed(len(placed) + 1, path, interface))
            out.link(f"{path}/device", f"/sys{card}")
    by_name = {one.interface.name: one for one in placed}
    for one in placed:
        _render_interface(out, one)
        master = by_name.get(one.interface.master or "")
        if master is not None:
            _render_membership(out, one, master)
        if one.interface.kind is InterfaceKind.BOND:
            slaves = [other.interface.name for other in placed if other.interface.master == one.interface.name]
            out.file(f"{one.path}/bonding/slaves", " ".join(slaves), READ_WRITE)
    up = [one for one in placed if one.interface.state is LinkState.UP]
    out.file("/proc/1/net/dev", _statistics(placed))
    out.file("/proc/1/net/route", _routes(up))
    out.file("/proc/1/net/ipv6_route", _ipv6_routes(up))
    out.file("/proc/1/net/if_inet6", _ipv6_addresses(up))
    out.file("/proc/1/net/fib_trie", _fib_trie(up))


def _render_interface(out: TreeBuilder, one: _Placed) -> None:
    facts = one.interface
    loopback = facts is _LOOPBACK
    flags = 0x8 if loopback else _IFF_BROADCAST_MULTICAST
    flags |= _UP if facts.state is LinkState.UP else 0
    for name, value in (
        ("address", facts.mac_address),
        ("ifindex", str(one.index)),
        ("operstate", "unknown" if loopback else facts.state.value.lower()),
        ("carrier", "1" if facts.state is LinkState.UP else "0"),
        ("type", "772" if loopback else "1"),
    ):
        out.file(f"{one.path}/{name}", value)
    out.file(f"{one.path}/flags", f"{flags:#x}", READ_WRITE)
    out.file(f"{one.path}/mtu", "65536" if loopback else "1500", READ_WRITE)
    out.file(f"{one.path}/uevent", f"INTERFACE={facts.name}\nIFINDEX={one.index}", READ_WRITE)
    out.link(f"{one.path}/subsystem", "/sys/class/net")
    out.link(f"/sys/class/net/{facts.name}", one.path)
    if facts.kind is InterfaceKind.BRIDGE:
        out.file(f"{one.path}/bridge/bridge_id", f"8000.{facts.mac_address.replace(':', '')}")


def _render_membership(out: TreeBuilder, one: _Placed, master: _Placed) -> None:
    out.link(f"{one.path}/master", master.path)
    out.link(f"{one.path}/upper_{master.interface.name}", master.path)
    out.link(f"{master.path}/lower_{one.interface.name}", one.path)
    if master.interface.kind is InterfaceKind.BRIDGE:
        out.link(f"{one.path}/brport/bridge", master.path)
        out.link(f"{master.path}/brif/{one.interface.name}", f"{one.path}/brport")


def _statistics(placed: list[_Placed]) -> str:
    """/proc/net/dev: every interface, up or down."""
    lines = [
        "Inter-|   Receive                                                |  Transmit",
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls "
        "carrier compressed",
    ]
    lines += [f"{one.interface.name:>6}:" + " 0" * 16 for one in placed]
    return "\n".join(lines)


def _addresses(one: _Placed) -> list[IPv4Interface | IPv6Interface]:
    return [ipaddress.ip_interface(address) for address in one.interface.addresses]


def _routes(up: list[_Placed]) -> str:
    """/proc/net/route: numbers in hexadecimal of the machine's (little-endian) byte order."""
    rows = []
    for one in up:
        if one.interface is _LOOPBACK:
            continue
        gateways = [ipaddress.ip_address(gateway) for gateway in one.interface.gateways]
        rows += [(one.interface.name, 0, int(via), _UP | _GATEWAY, 0) for via in gateways if via.version == 4]
        for address in _addresses(one):
            # A host address (/32) makes no route in the main table.
            if isinstance(address, IPv4Interface) and address.network.prefixlen < 32:
                network = address.network
                rows.append((one.interface.name, int(network.network_address), 0, _UP, int(network.netmask)))
    lines = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"]
    lines += [
        f"{name}\t{_swapped(to)}\t{_swapped(via)}\t{flags:04X}\t0\t0\t0\t{_swapped(mask)}\t0\t0\t0"
        for name, to, via, flags, mask in rows
    ]
    return "\n".join(line.ljust(127) for line in lines)


def _swapped(number: int) -> str:
    return number.to_bytes(4, "little").hex().upper()


def _ipv6_routes(up: list[_Placed]) -> str:
    """/proc/net/ipv6_route: destination, source and next hop with their prefixes, metric, counts, flags, interface."""
    zero = "0" * 32
    lines = []
    for one in up:
        name = one.interface.name
        for address in _addresses(one):
            if isinstance(address, IPv6Interface):
                network = address.network
                lines.append((network.network_address, network.prefixlen, zero, 0x100, 0x1, name))
                lines.append((address.ip, 128, zero, 0, 0x80200001, "lo" if name == "lo" else name))
        gateways = [ipaddress.ip_address(gateway) for gateway in one.interface.gateways]
        lines += [(IPv6Address(0), 0, f"{int(via):032x}", 0x400, 0x3, name) for via in gateways if via.version == 6]
    # The kernel's own answer for what has no route.
    lines.append((IPv6Address(0), 0, zero, 0xFFFFFFFF, 0x00200200, "lo"))
    return "\n".join(
        f"{int(to):032x} {prefix:02x} {zero} 00 {via} {metric:08x} 00000001 00000000 {flags:08x} {name:>8}"
        for to, prefix, via, metric, flags, name in lines
    )


def _ipv6_addresses(up: list[_Placed]) -> str:
    """/proc/net/if_inet6: address, index, prefix, scope, flags, interface."""
    lines = []
    for one in up:
        for address in _addresses(one):
            if isinstance(address, IPv6Interface):
                scope = 0x10 if address.ip.is_loopback else 0x20 if address.ip.is_link_local else 0
                prefix = address.network.prefixlen
                lines.append(
                    f"{int(address.ip):032x} {one.index:02x} {prefix:02x} {scope:02x} 80 {one.interface.name:>8}"
                )
    return "\n".join(lines)


def _fib_trie(up: list[_Placed]) -> str:
    """/proc/net/fib_trie: leaves of the table, one below the root; "/32 host LOCAL" marks the host's own addresses."""
    own = sorted({address.ip for one in up for address in _addresses(one) if isinstance(address, IPv4Interface)})
    leaves = "".join(f"     |-- {address}\n        /32 host LOCAL\n" for address in own)
    table = f"  +-- 0.0.0.0/0 3 0 5\n{leaves}"
    return f"Main:\n{table}Local:\n{table}"
