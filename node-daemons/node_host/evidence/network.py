"""Which network interfaces the host itself needs, and which PCI functions carry them.

Sources: /proc/net/{route,fib_trie,ipv6_route,if_inet6} of the host's own network namespace (that of process 1), and
/sys/class/net. fib_trie lists local addresses without interfaces: an address belongs to the interface whose connected
route covers it. Formats: net/ipv4/fib_trie.c, net/ipv6/route.c, net/ipv6/addrconf.c of the Linux kernel.
"""

import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from node_host.host import Host
from node_host.pci.device import last_address

NET: Final = "/sys/class/net"
_OPEN_VSWITCH: Final = "ovs-system"
_RTF_UP: Final = 0x1
_RTF_GATEWAY: Final = 0x2
_RTF_REJECT: Final = 0x200  # unreachable and blackhole routes, e.g. the one that IPv6 always has on lo
_LOCAL_ADDRESS = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")

T = TypeVar("T")
Reasons: TypeAlias = dict[str, set[str]]


@dataclass(frozen=True, slots=True)
class NetworkEvidence:
    """What the host's network needs. Interfaces by name: why it is needed, as parts of sentences."""

    default_route: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    addressed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # PCI function of an interface; virtual interfaces have none.
    function_of: Mapping[str, str] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Routes:
    """What one routing file says: interfaces of default routes, and connected networks with their interfaces."""

    default: frozenset[str] = frozenset()
    connected: tuple[tuple[ipaddress.IPv4Network, str], ...] = ()


def parse_route(text: str) -> Routes:
    """/proc/net/route: hex of the address in network byte order as a native (little-endian) word. ValueError if not."""
    default: set[str] = set()
    connected: list[tuple[ipaddress.IPv4Network, str]] = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if not words:
            continue
        if len(words) < 8:
            raise ValueError(f"a line has {len(words)} fields: {line[:80]!r}")
        flags = int(words[3], 16)
        if not flags & _RTF_UP or flags & _RTF_REJECT:
            continue
        network = ipaddress.IPv4Network((_ipv4(words[1]), str(_ipv4(words[7]))))
        if network.prefixlen == 0:
            default.add(words[0])
        elif not flags & _RTF_GATEWAY:
            connected.append((network, words[0]))
    return Routes(frozenset(default), tuple(connected))


def _ipv4(word: str) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int.from_bytes(bytes.fromhex(word.zfill(8)), "little"))


def parse_local_addresses(text: str) -> frozenset[ipaddress.IPv4Address]:
    """/proc/net/fib_trie: the host's own IPv4 addresses, loopback left out. ValueError for a strange line."""
    found = {ipaddress.IPv4Address(address) for address in _LOCAL_ADDRESS.findall(text)}
    return frozenset(address for address in found if not address.is_loopback)


def parse_ipv6_route(text: str) -> frozenset[str]:
    """/proc/net/ipv6_route: interfaces of default routes."""
    default = set()
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if len(words) != 10:
            raise ValueError(f"a line has {len(words)} fields: {line[:80]!r}")
        is_default = int(words[0], 16) == 0 and int(words[1], 16) == 0
        flags = int(words[8], 16)
        if is_default and flags & _RTF_UP and not flags & _RTF_REJECT and words[9] != "lo":
            default.add(words[9])
    return frozenset(default)


def parse_if_inet6(text: str) -> tuple[tuple[str, ipaddress.IPv6Address], ...]:
    """/proc/net/if_inet6: interfaces with their IPv6 addresses, loopback left out, link-local ones kept."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if len(words) != 6:
            raise ValueError(f"a line has {len(words)} fields: {line[:80]!r}")
        address = ipaddress.IPv6Address(bytes.fromhex(words[0]))
        if not address.is_loopback:
            found.append((words[5], address))
    return tuple(found)


def read_network_evidence(host: Host) -> NetworkEvidence:
    """Everything, with the lower interfaces of bonds, bridges and VLANs included. Never raises."""
    reader = _Reader(host)
    default: Reasons = defaultdict(set)
    addressed: Reasons = defaultdict(set)
    routes = reader.parse("route", parse_route) or Routes()
    for name in routes.default:
        default[name].add("carries the default route")
    for address in reader.parse("fib_trie", parse_local_addresses) or ():
        for name in _interfaces_of(address, routes):
            addressed[name].add(f"has address {address}")
    for name in reader.parse("ipv6_route", parse_ipv6_route, optional=True) or ():
        default[name].add("carries the IPv6 default route")
    for name, ipv6 in reader.parse("if_inet6", parse_if_inet6, optional=True) or ():
        addressed[name].add(f"has address {ipv6}")
    interfaces = reader.interfaces()
    lower = {name: reader.lower(name, interfaces) for name in interfaces}
    for needed in (default, addressed):
        _spread(needed, lower)
    for name in interfaces:
        if _OPEN_VSWITCH in interfaces[name]:
            addressed[name].add(f"is a port of {_OPEN_VSWITCH}, whose address may stand on any port of the switch")
    function_of = reader.functions(interfaces)
    for name in sorted({*default, *addressed} - (interfaces.keys() - reader.vanished)):
        # Which function carries it cannot be told, so it may be any.
        reasons = sorted({*default.get(name, ()), *addressed.get(name, ())})
        reader.unreadable.append(
            f"network interface {name} {' and '.join(reasons)}, but is not in {NET}: "
            "that is of another network namespace than process 1 (hostNetwork), or not whole"
        )
    return NetworkEvidence(
        default_route=_sorted(default),
        addressed=_sorted(addressed),
        function_of=function_of,
        unreadable=tuple(reader.unreadable),
    )


def _interfaces_of(address: ipaddress.IPv4Address, routes: Routes) -> Iterable[str]:
    """Interfaces whose connected route covers the address, the longest prefix alone."""
    covering = [(network.prefixlen, name) for network, name in routes.connected if address in network]
    longest = max((length for length, _ in covering), default=-1)
    return {name for length, name in covering if length == longest}


def _spread(needed: Reasons, lower: Mapping[str, frozenset[str]]) -> None:
    """What an upper interface needs, its lower ones carry: a bond's members, a bridge's ports, a VLAN's parent."""
    todo = list(needed)
    seen = set(todo)
    while todo:
        upper = todo.pop()
        for name in lower.get(upper, frozenset()):
            needed[name].update(
                reason if reason.startswith("is below") else f"is below {upper}, which {reason}"
                for reason in needed[upper]
            )
            if name not in seen:
                seen.add(name)
                todo.append(name)


def _sorted(reasons: Reasons) -> dict[str, tuple[str, ...]]:
    return {name: tuple(sorted(reasons[name])) for name in sorted(reasons)}


class _Reader:
    def __init__(self, host: Host) -> None:
        self._host = host
        self.unreadable: list[str] = []
        self.vanished: set[str] = set()
        # Process 1 is in the host's network namespace whatever namespace this process is in.
        self._net = "/proc/1/net" if host.exists("/proc/1/net") else "/proc/net"

    def parse(self, name: str, parse: Callable[[str], T], *, optional: bool = False) -> T | None:
        """What a file of /proc/net says; optional ones are missing on a host without that protocol."""
        path = f"{self._net}/{name}"
        try:
            return parse(self._host.read(path).decode("utf-8", "replace"))
        except FileNotFoundError as error:
            if not optional:
                self._fault(path, error)
        except (OSError, ValueError) as error:
            self._fault(path, error)
        return None

    def interfaces(self) -> dict[str, frozenset[str]]:
        """Interfaces with the names that are above them (`upper_*`, `master`)."""
        try:
            names = self._host.list(NET)
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._fault(NET, error)
            return {}
        return {name: self._above(name) for name in names if self._is_interface(name)}

    def _is_interface(self, name: str) -> bool:
        """bonding_masters is a plain file beside the interfaces."""
        return self._host.exists(f"{NET}/{name}/flags") or self._host.exists(f"{NET}/{name}/ifindex")

    def _above(self, name: str) -> frozenset[str]:
        entries = self._list(f"{NET}/{name}")
        above = {entry.removeprefix("upper_") for entry in entries if entry.startswith("upper_")}
        if "master" in entries:
            try:
                above.add(self._host.read_link(f"{NET}/{name}/master").rpartition("/")[2])
            except OSError as error:
                self._fault(f"{NET}/{name}/master", error)
        return frozenset(above)

    def lower(self, name: str, interfaces: Mapping[str, frozenset[str]]) -> frozenset[str]:
        """Interfaces directly below: by their own links to it, by its links to them, by its lists of ports."""
        below = {other for other, above in interfaces.items() if name in above}
        entries = self._list(f"{NET}/{name}")
        below |= {entry.removeprefix("lower_") for entry in entries if entry.startswith("lower_")}
        if "brif" in entries:
            below |= set(self._list(f"{NET}/{name}/brif"))
        if "bonding" in entries:
            try:
                below |= set(self._host.read(f"{NET}/{name}/bonding/slaves").decode("utf-8", "replace").split())
            except OSError as error:
                self._fault(f"{NET}/{name}/bonding/slaves", error)
        return frozenset(below)

    def functions(self, interfaces: Iterable[str]) -> dict[str, str]:
        """The PCI function that each interface hangs on, e.g. the controller of a USB network card."""
        found = {}
        for name in interfaces:
            try:
                address = last_address(self._host.resolve(f"{NET}/{name}"))
            except FileNotFoundError:
                self.vanished.add(name)
                continue
            except OSError as error:
                self._fault(f"{NET}/{name}", error)
                continue
            if address is not None:
                found[name] = address
        return found

    def _list(self, path: str) -> list[str]:
        try:
            return self._host.list(path)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._fault(path, error)
            return []

    def _fault(self, path: str, error: Exception) -> None:
        self.unreadable.append(f"{path}: {getattr(error, 'strerror', None) or error}")
