"""A card as it is now: what the host's files, its driver's lists and the vendor's program tell, put together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from crds.catalogue import Catalogue
from crds.models.node_state import DesiredDevice, Intent, UseKind
from crds.models.profiling import ProfileReason as Reason
from node_host.bounded_call import BoundedCalls, HungError
from node_host.evidence.usage import in_use_text
from node_host.handover.entry import entry_digest, shapes_of, vgpu_shape
from node_host.host import HostWithTools
from node_host.pci.device import PCIDevice, identity_of, same_identity
from node_host.pci.vfio_drivers import is_vfio_driver
from node_host.selection import product_of
from node_host.vgpu.driver import DriverLoad, read_driver_load
from node_host.vgpu.functions import FunctionTypes, read_function
from node_host.vgpu.type_names import TypeNames, read_type_names, write_type_names
from node_host.vgpu.types import profile_of
from node_host.view import HostView
from profile_writer.card import CardFormer, CardSeen, FunctionSeen, Obstacle
from profile_writer.mdev_looking import MdevsOfCard, look_at_mdevs
from profile_writer.record import CardEntry
from profile_writer.tools import CardModes

_USERS: Final = 4


@dataclass(frozen=True, slots=True)
class CardOrders:
    """The order of one card, in the form in which a token may be for it.

    `functions` are the virtual functions that it has or could have. `only`: of the shapes that functions may get, the
    ones that they get now; None for all.
    """

    entry: DesiredDevice
    functions: frozenset[str]
    only: frozenset[str] | None = None

    def entries_of(self, address: str) -> frozenset[str]:
        """The digests of the orders that a token of the device may be for."""
        return frozenset({entry_digest(self.entry)}) if self._is_ours(address) else frozenset()

    def shapes_of(self, address: str) -> frozenset[str]:
        """The digests of the shapes that the device may get; none when it is given back."""
        if self.entry.intent is Intent.RELEASE or not self._is_ours(address):
            return frozenset()
        shapes = shapes_of(self.entry, address)
        return shapes if self.only is None or address == self.entry.address else shapes & self.only

    def making(self, profiles: Iterable[str]) -> "CardOrders":
        """The same where functions get one of these profiles."""
        return replace(self, only=frozenset(vgpu_shape(profile) for profile in profiles))

    def _is_ours(self, address: str) -> bool:
        return address == self.entry.address or address in self.functions


def orders_of(entry: DesiredDevice, device: PCIDevice | None) -> CardOrders:
    """The order of a card as it is; None: it is not known."""
    return CardOrders(entry, device.possible_functions if device is not None else frozenset())


@dataclass(frozen=True, slots=True)
class DriverSeen:
    """The driver of a card: which load of it, and the names of its types for this kind of card."""

    load: DriverLoad | None
    names: Mapping[int, str]


class Looking:
    """Reads cards of one host."""

    def __init__(self, host: HostWithTools, catalogue: Catalogue, calls: BoundedCalls) -> None:
        self._host = host
        self._catalogue = catalogue
        self._calls = calls
        self.keeps_names = True
        """Whether names that lists tell are written down for this boot; on paper nothing is."""

    async def card(
        self,
        entry: DesiredDevice,
        view: HostView,
        recorded: CardEntry | None,
        modes: CardModes,
        *,
        has_tool: bool,
        has_smi: bool,
    ) -> CardSeen:
        """The card of an entry, as seen in `view`, which has its virtual functions."""
        obstacle = _obstacle(entry, view)
        if obstacle is not None:
            return CardSeen(entry.address, None, obstacle=obstacle)
        device = view.devices[entry.address]
        types = await self._types(device)
        driver = await self.driver(device, view.boot_id, types)
        product = product_of(self._catalogue, device)
        sizes = {one.name: one.frame_buffer_gib for one in product.profiles} if product is not None else {}
        orders = orders_of(entry, device)
        same_boot = recorded is not None and recorded.boot_id == view.boot_id
        given = dict(recorded.given) if recorded is not None else {}
        functions = tuple(
            self._function(address, types.get(address), view, driver.names, orders, given)
            for address in device.virtual_functions
        )
        try:
            made = MdevsOfCard() if types else await self._mdevs(device, view, orders)
        except OSError as error:
            text = f"its mediated devices cannot be read: {error.strerror or error}"
            return CardSeen(entry.address, device.driver, obstacle=Obstacle(Reason.DEVICE_UNREADABLE, text))
        return CardSeen(
            address=entry.address,
            driver=device.driver,
            is_on_vfio=is_vfio_driver(device.driver),
            total=device.total_vfs,
            number=device.num_vfs or 0,
            functions=functions,
            users=_card_users(entry.address, view, orders),
            mig=modes.mig,
            mixed=modes.mixed,
            has_tool=has_tool,
            has_smi=has_smi,
            names=frozenset(profile_of(name) for name in driver.names.values()),
            sizes=sizes,
            frame_buffer=_frame_buffer(product.frame_buffer_gb if product else None, sizes),
            former=CardFormer(recorded.former_number, recorded.former_profiles) if recorded and same_boot else None,
            given=given if same_boot else {},
            # Addresses may move when a card is added: a serial number does not.
            identity=device.identity if device.serial else f"{device.address}/{device.identity}",
            parents=made.parents,
            mdevs=made.mdevs,
        )

    async def _mdevs(self, device: PCIDevice, view: HostView, orders: CardOrders) -> MdevsOfCard:
        """Mediated devices; none is changed while the function that makes it is not to be. Raises OSError."""
        look = partial(look_at_mdevs, self._host, device.address, device.virtual_functions)
        made = await self._calls.run(f"mdevs of {device.address}", look)
        why = {
            parent.address: _of_function(parent.address, view, orders)
            for parent in made.parents
            if parent.address != device.address
        }
        return MdevsOfCard(
            tuple(replace(one, obstacle=why.get(one.address)) for one in made.parents),
            tuple(replace(one, obstacle=one.obstacle or why.get(one.parent)) for one in made.mdevs),
        )

    async def driver(self, device: PCIDevice, boot_id: str, types: Mapping[str, FunctionTypes]) -> DriverSeen:
        """The load of the card's driver, and what it calls its types: as its lists say, or have said."""
        if device.driver is None:
            return DriverSeen(None, {})
        ids = f"{device.vendor}:{device.device}"
        listed = [kind for one in types.values() for kind in one.creatable]
        try:
            load = await self._calls.run("driver", partial(read_driver_load, self._host, device.driver, boot_id))
            if load is None:  # built into the kernel
                load = DriverLoad(device.driver, "", f"{boot_id}/{device.driver}")
            names = await self._calls.run("type names", partial(read_type_names, self._host, load))
            added = names.with_types(ids, listed)
            if added is not names and self.keeps_names:
                await self._calls.run("type names", partial(self._keep, added))
        except (OSError, HungError):
            return DriverSeen(None, {kind.id: kind.name for kind in listed})
        return DriverSeen(load, added.of(ids))

    async def loaded(self, driver: str) -> int | None:
        """What tells this load of a driver's module from another, of the same release too; None where nothing does."""
        path = f"/sys/module/{driver.replace('-', '_')}"
        try:
            return (await self._calls.run(path, partial(self._host.stat, path))).st_ino
        except (OSError, HungError):
            return None

    def _keep(self, names: TypeNames) -> None:
        write_type_names(self._host, names)

    async def _types(self, device: PCIDevice) -> dict[str, FunctionTypes]:
        reads = {
            f"types of {address}": partial(read_function, self._host, address) for address in device.virtual_functions
        }
        found = {}
        for key, result in (await self._calls.each(reads)).items():
            address = key.removeprefix("types of ")
            if isinstance(result, FunctionTypes):
                found[address] = result
            elif isinstance(result, Exception):
                found[address] = FunctionTypes(address, None, fault=str(result))
        return found

    def _function(
        self,
        address: str,
        types: FunctionTypes | None,
        view: HostView,
        names: Mapping[int, str],
        orders: CardOrders,
        given: Mapping[str, str],
    ) -> FunctionSeen:
        former = view.prepared.profile_of(address) or given.get(address)
        if types is None:
            return FunctionSeen(address, is_vgpu=False, former=former)
        name = names.get(types.current) if types.current else None
        seen = FunctionSeen(
            address,
            type_id=types.current,
            profile=None if name is None else profile_of(name),
            creatable={kind.profile: kind.id for kind in types.creatable},
            users=tuple(user.name for user in view.users.get(address, ()))[:_USERS],
            former=former,
            fault=types.fault,
        )
        obstacle = _of_function(address, view, orders)
        return replace(seen, obstacle=obstacle, promised=None if obstacle else _promised(address, view, orders))


def _obstacle(entry: DesiredDevice, view: HostView) -> Obstacle | None:
    """Why the card is not touched at all."""
    absent = view.absence(entry.address)
    if absent is not None:
        return Obstacle(Reason(absent.reason), absent.message)
    device = view.devices[entry.address]
    wanted = identity_of(entry.identity.vendor, entry.identity.device, entry.identity.serial)
    if not same_identity(device.identity, wanted):
        return Obstacle(Reason.IDENTITY_MISMATCH, f"it is {device.identity}, and {wanted} was ordered")
    vetoes = view.vetoes.get(entry.address, ())
    if vetoes:
        return Obstacle(Reason.VETOED, f"the host needs it: {'; '.join(veto.message for veto in vetoes)}")
    return None


def _of_function(address: str, view: HostView, orders: CardOrders) -> Obstacle | None:
    """Why the type of a function is not changed: the host needs it, somebody has it, or may have it."""
    if view.vetoes.get(address):
        return Obstacle(Reason.VETOED, f"the host needs it: {view.vetoes[address][0].message}")
    used = view.in_use(address)
    if used is not None:
        return Obstacle(Reason.IN_USE, used)
    waits = view.not_handed_over(address, orders)
    return None if waits is None else Obstacle(Reason(waits.reason), waits.message)


def _promised(address: str, view: HostView, orders: CardOrders) -> frozenset[str] | None:
    """The profiles that a function may get without being handed over; None where it may get any.

    Pods could have it before the last boot as what it was then, and may have it so again.
    """
    profiles = {one.profile for one in (orders.entry.vgpu.layout if orders.entry.vgpu is not None else ())}
    if address not in view.prepared.addresses or orders.entry.intent is Intent.RELEASE:
        return None
    free = {one for one in profiles if view.not_handed_over(address, orders.making([one])) is None}
    return None if free == profiles else frozenset(free)


def _card_users(address: str, view: HostView, orders: CardOrders) -> tuple[str, ...]:
    """Who uses the card itself, in words; virtual functions are no users. Raises nothing."""
    if address not in view.users:
        return ("unknown: who uses it was not looked at",)
    users = [user for user in view.users[address] if user.kind is not UseKind.VIRTUAL_FUNCTIONS]
    told = [in_use_text([user]) for user in users]
    waits = view.not_handed_over(address, orders)
    return tuple(told if waits is None else [*told, waits.message])


def _frame_buffer(known: int | None, sizes: Mapping[str, int]) -> int | None:
    """What the vGPUs of the card have together: as the catalogue says, else what the biggest profile takes."""
    return known if known is not None else max(sizes.values(), default=None)
