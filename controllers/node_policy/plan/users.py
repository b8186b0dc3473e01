"""Who uses the devices of one node, as its inventory shows, and whether an eviction could move them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controllers.node_policy.plan.kept_vgpus import kept_vgpus
from controllers.node_policy.plan.orders import Shape
from controllers.node_policy.plan.view import DeviceReportView, DeviceView

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Users:
    """`pods`: UIDs of the pods among them. `others`: texts of those that no eviction moves. `texts`: all of them."""

    pods: frozenset[str] = frozenset()
    others: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.texts)

    def describe(self) -> str:
        """For messages: the first ones, those that no eviction moves before the others."""
        ranked = [*self.others, *(text for text in self.texts if text not in self.others)]
        more = ", …" if len(ranked) > _SHOWN else ""
        return f"in use by {', '.join(ranked[:_SHOWN])}{more}"


NOBODY: Final = Users()
NO_SHAPES: Final[Mapping[str, Shape]] = {}
NO_REPORTS: Final[Mapping[str, DeviceReportView]] = {}


class Usage:
    """The users of every device of one inventory. `bindings`: what the binder says of them in this boot; `carved`: the
    orders in force of cards whose virtual functions are npufleet's to carve into vGPUs, and to undo; `profiles`: what
    their writer says of them in this boot.
    """

    def __init__(
        self,
        devices: Iterable[DeviceView],
        bindings: Mapping[str, DeviceReportView],
        carved: Mapping[str, Shape] = NO_SHAPES,
        profiles: Mapping[str, DeviceReportView] = NO_REPORTS,
    ) -> None:
        self._bindings = bindings
        self._carved = carved
        self._profiles = profiles
        self._devices: dict[str, DeviceView] = {}
        self._functions: dict[str, list[DeviceView]] = {}
        self._groups: dict[int, list[DeviceView]] = {}
        for device in devices:
            self._devices[device.address] = device
            if device.card is not None:
                self._functions.setdefault(device.card, []).append(device)
            if device.users and device.iommu_group is not None:
                self._groups.setdefault(device.iommu_group, []).append(device)

    def of(self, address: str, shape: Shape | None) -> Users:
        """Who is in the way of making `shape` of the device, or of giving it back (None)."""
        device = self._devices.get(address)
        if device is None:
            return NOBODY
        kept = self._kept(address, shape)
        concerned = [device, *(one for one in self._functions.get(address, ()) if one.address not in kept)]
        if shape is not None and shape.binds_companions and device.iommu_group is not None:
            concerned += [other for other in self._groups.get(device.iommu_group, ()) if other not in concerned]
        own = self._functions_of_others(device, shape)
        if not own and not any(one.users for one in concerned):
            return NOBODY
        pods: set[str] = set()
        others: list[str] = [own] if own else []
        texts: list[str] = [own] if own else []
        for one in concerned:
            place = "" if one is device else f" on {one.address}"
            pods |= one.pods
            others += [text + place for text in one.others]
            texts += [text + place for text in one.users]
        return Users(frozenset(pods), tuple(others), tuple(texts))

    def _kept(self, address: str, shape: Shape | None) -> frozenset[str]:
        said, present = self._profiles.get(address), self._carved.get(address)
        if said is None or not said.vgpus or present is None:
            return frozenset()
        used = {one.address for one in self._functions.get(address, ()) if one.users}
        return kept_vgpus(present, shape, dict(said.vgpus), used)

    def addresses(self, address: str, shape: Shape | None) -> frozenset[str]:
        """The device and its virtual functions, as far as their users are in the way of making `shape` of it."""
        functions = frozenset(function.address for function in self._functions.get(address, ()))
        return frozenset((address, *functions)) - self._kept(address, shape)

    def _functions_of_others(self, device: DeviceView, shape: Shape | None) -> str:
        """Virtual functions that npufleet did not make are in the way of the card; its own ones it undoes."""
        if not device.own_functions or device.address in self._carved or (shape and shape.gives_functions):
            return ""
        said = self._bindings.get(device.address)
        return device.own_functions if said is None or said.former_driver is None else ""
