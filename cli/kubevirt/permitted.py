"""KubeVirt's `permittedHostDevices` of a fleet: what maps, policies and the catalogue say of it. Pure.

Fields: KubeVirt API v1, PermittedHostDevices, PciHostDevice (pciVendorSelector, resourceName,
externalResourceProvider), MediatedHostDevice (mdevNameSelector, resourceName). Who serves what: cozystack, GPU guide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cli.git_objects import GitObjects
from crds.catalogue import Catalogue, Product
from crds.catalogue.resource_names import whole_card_resource
from crds.models.device_match import Function
from crds.models.modes import Mode
from crds.models.profile_map import CardLayout, Framework
from webhooks.rules.hardware import device_ids, meant

PCI: Final = "pciHostDevices"
MDEV: Final = "mediatedDevices"
_SELECTORS: Final = {PCI: "pciVendorSelector", MDEV: "mdevNameSelector"}
_USE_CLASSES: Final = "ask for them by the DeviceClass of the profile instead (DRA)"


@dataclass(frozen=True, slots=True, order=True)
class Permit:
    """One entry of the block. ``thing`` is what a VM gets by it: a profile, or a whole card."""

    list: str
    selector: str
    resource: str
    thing: str
    is_whole: bool = False


@dataclass(slots=True)
class Permitted:
    """The block, what is in doubt (`warnings`) and what is good to know (`notes`)."""

    block: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def permitted_host_devices(
    objects: GitObjects,
    catalogue: Catalogue,
    existing: Mapping[str, Any],
    *,
    external_passthrough: bool = True,
    mdev_word: str = "NVIDIA",
) -> Permitted:
    """The block for these objects, behind what `existing` has.

    ``external_passthrough``: whole cards are served by a device plugin beside KubeVirt. ``mdev_word`` is what the
    driver puts in front of profiles in names of mediated devices.
    """
    found = Permitted()
    permits = sorted({*_of_maps(objects, catalogue, mdev_word, found), *_of_policies(objects, catalogue, found)})
    _tell_shared(permits, found)
    _tell_twins_of_functions(permits, catalogue, found)
    _tell_names(permits, existing, found)
    found.block = _block(permits, existing, found, external_passthrough=external_passthrough)
    found.warnings = list(dict.fromkeys(found.warnings))
    found.notes = list(dict.fromkeys(found.notes))
    return found


def _of_maps(objects: GitObjects, catalogue: Catalogue, word: str, found: Permitted) -> Iterator[Permit]:
    for one in objects.maps:
        for place, entry in enumerate(one.spec.gpus):
            yield from _of_entry(
                f"VGPUProfileMap/{one.metadata.name}: spec.gpus[{place}]", entry, catalogue, word, found
            )


def _of_entry(at: str, entry: CardLayout, catalogue: Catalogue, word: str, found: Permitted) -> Iterator[Permit]:
    named = {item.profile: item.resource_name for item in entry.layout if item.resource_name is not None}
    for profile in sorted({item.profile for item in entry.layout} - named.keys()):
        found.warnings.append(
            f"{at}: {profile} has no resourceName: it is left out, and offered by its DeviceClass only"
        )
    if not named:
        return
    if entry.framework is Framework.MDEV:
        for profile, resource in named.items():
            yield Permit(MDEV, f"{word} {profile}", resource, profile)
        return
    meaning = meant(entry.match, catalogue)
    if not meaning.only:
        found.warnings.append(f"{at}: match may mean cards that the catalogue does not know: their ids are left out")
    for product in meaning.products:
        if not product.virtual:
            how = (
                "set framework to Mdev where the driver makes mediated devices"
                if entry.framework is Framework.AUTO
                else ""
            )
            why = f"no public source tells the ids of virtual functions of {product.name}"
            found.warnings.append(f"{at}: {why}: it is left out{f'; {how}' if how else ''}")
        for device in product.virtual:
            for profile, resource in named.items():
                yield Permit(PCI, _selector(product, device), resource, profile)


def _of_policies(objects: GitObjects, catalogue: Catalogue, found: Permitted) -> Iterator[Permit]:
    for policy in objects.policies:
        for rule in policy.spec.devices:
            if rule.mode is not Mode.PASSTHROUGH:
                continue
            at = f"NPUNodePolicy/{policy.metadata.name}: rule {rule.name}"
            makes_functions = rule.passthrough is not None and rule.passthrough.virtual_functions is not None
            if makes_functions or rule.match.function is Function.VIRTUAL:
                found.warnings.append(f"{at}: plain virtual functions have no name of their own: they are left out")
                continue
            meaning = meant(rule.match, catalogue)
            if not meaning.only:
                found.warnings.append(f"{at}: match may mean devices that the catalogue does not know: left out")
            for product in meaning.products:
                resource = whole_card_resource(product)
                if resource is None:
                    found.warnings.append(f"{at}: no resource name is known of {product.name}: it is left out")
                    continue
                for device in device_ids(rule.match, product) & set(product.physical):
                    yield Permit(PCI, _selector(product, device), resource, product.name, is_whole=True)


def _selector(product: Product, device: str) -> str:
    return f"{product.vendor.id}:{device}".upper()


def _tell_shared(permits: list[Permit], found: Permitted) -> None:
    profiles: dict[tuple[str, str], set[str]] = {}
    for permit in permits:
        if not permit.is_whole:
            profiles.setdefault((permit.list, permit.selector), set()).add(permit.thing)
    for (_, selector), things in sorted(profiles.items()):
        if len(things) > 1:
            names = ", ".join(sorted(things))
            found.warnings.append(
                f"{selector} selects vGPUs of {names}: KubeVirt's own plugin cannot tell them apart; {_USE_CLASSES}"
            )


def _tell_twins_of_functions(permits: list[Permit], catalogue: Catalogue, found: Permitted) -> None:
    """Physical and virtual functions of one id: a doubt where both are given to VMs, else good to know."""
    shared = {
        _selector(product, device): product.name
        for product in catalogue.products.values()
        for device in set(product.physical) & set(product.virtual)
    }
    for selector in sorted({permit.selector for permit in permits if permit.list == PCI} & shared.keys()):
        kinds = {permit.is_whole for permit in permits if permit.selector == selector}
        text = f"{selector}: {shared[selector]} and its virtual functions have the same ids"
        if len(kinds) > 1:
            found.warnings.append(
                f"{text}, and both are given to VMs: one selector means whole cards and vGPUs; {_USE_CLASSES}"
            )
        else:
            found.notes.append(f"{text}: virt-handler takes functions with a vGPU type only from KubeVirt 1.9 on")


def _tell_names(permits: list[Permit], existing: Mapping[str, Any], found: Permitted) -> None:
    things: dict[str, set[str]] = {}
    places: dict[str, set[str]] = {}
    for permit in permits:
        things.setdefault(permit.resource, set()).add(permit.thing)
        places.setdefault(permit.resource, set()).add(permit.selector.upper())
    for resource, names in sorted(things.items()):
        if len(names) > 1:
            found.warnings.append(f"{resource} is the name of {', '.join(sorted(names))}: a VM gets any of them")
    for kind in _SELECTORS:
        for entry in existing.get(kind) or ():
            resource, selector = str(entry.get("resourceName")), str(entry.get(_SELECTORS[kind]))
            if resource in places and selector.upper() not in places[resource]:
                found.warnings.append(f"{resource} is the name of {selector} already, in the block that is there")


def _block(
    permits: list[Permit], existing: Mapping[str, Any], found: Permitted, *, external_passthrough: bool
) -> dict[str, Any]:
    block: dict[str, Any] = dict(existing)
    for kind, key in _SELECTORS.items():
        entries = [dict(entry) for entry in existing.get(kind) or ()]
        there = {(str(one.get(key)).upper(), str(one.get("resourceName"))): one for one in entries}
        for permit in permits:
            if permit.list != kind:
                continue
            entry: dict[str, Any] = {key: permit.selector, "resourceName": permit.resource}
            if permit.is_whole and external_passthrough:
                entry["externalResourceProvider"] = True
            old = there.setdefault((permit.selector.upper(), permit.resource), entry)
            if old is entry:
                entries.append(entry)
            elif bool(old.get("externalResourceProvider")) != bool(entry.get("externalResourceProvider")):
                found.warnings.append(
                    f"{permit.resource}: externalResourceProvider of the block that is there says otherwise: it is kept"
                )
        if entries or kind in existing:
            block[kind] = entries
    return block
