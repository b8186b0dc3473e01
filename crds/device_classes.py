"""DeviceClasses by the name of a DRA driver: one for what goes to VMs, one for what stays with containers.

The one source of them: the manifests of the base are made from it, `npufleet deviceclasses` prints it for other driver
names, and the node-policy controller looks for these names. Selectors ask for the attribute `type`, and only after they
know that the device has one: a device of another plugin under the same driver name must not end the allocation of
everybody's claims with an error.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from crds.device_names import NamedKind
from crds.models.modes import Mode
from crds.models.node_policy import DEFAULT_DRIVER_NAME

BASE_DRIVERS: Final = (DEFAULT_DRIVER_NAME, "npu.rebellions.ai")
"""Driver names whose classes every installation has."""

_PREFIXES: Final[Mapping[NamedKind, str]] = {NamedKind.NPU: "", NamedKind.VFIO: "vfio-"}
_KINDS: Final[Mapping[Mode, NamedKind]] = {Mode.PASSTHROUGH: NamedKind.VFIO, Mode.CONTAINER: NamedKind.NPU}
# What the API server takes for a resource of Kubernetes itself, or of a quota; KEP-5004.
_NATIVE: Final = "kubernetes.io"
_OF_QUOTAS: Final = "requests."
_MARKS: Final = str.maketrans(" _", "--")


def class_name(driver: str, kind: NamedKind) -> str:
    """The class of devices of a kind: `<driver>` for containers, `vfio-<driver>` for VMs."""
    return _PREFIXES[kind] + driver


def extended_resource_name(driver: str, kind: NamedKind) -> str | None:
    """The resource that a pod without a claim asks for; None where the API server takes no such name."""
    if driver.endswith(_NATIVE) or driver.startswith(_OF_QUOTAS):
        return None
    return f"{driver}/{kind}"


def device_class(driver: str, kind: NamedKind) -> dict[str, Any]:
    """The DeviceClass as the API server takes it."""
    ours = f'device.attributes["{driver}"]'
    selector = f'device.driver == "{driver}" &&\n"type" in {ours} &&\n{ours}.type == "{kind}"'
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": selector}}]}
    extended = extended_resource_name(driver, kind)
    if extended is not None:
        spec["extendedResourceName"] = extended
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": class_name(driver, kind)},
        "spec": spec,
    }


def device_classes(driver: str) -> tuple[dict[str, Any], ...]:
    """Both classes of a driver name."""
    return tuple(device_class(driver, kind) for kind in _PREFIXES)


def profile_class_name(profile: str) -> str:
    """The class of a vGPU profile, by its name without a vendor's word: `vgpu-l40s-24q.npufleet.io`."""
    return f"vgpu-{profile.lower().translate(_MARKS)}.{DEFAULT_DRIVER_NAME}"


def profile_class(profile: str, driver: str = DEFAULT_DRIVER_NAME) -> dict[str, Any]:
    """The DeviceClass of vGPUs of one profile, which is compared exactly.

    It has no extended resource: KubeVirt gives that name to what its own device plugin serves.
    """
    ours = f'device.attributes["{driver}"]'
    selector = (
        f'device.driver == "{driver}" &&\n"type" in {ours} &&\n{ours}.type == "{NamedKind.VGPU}" &&\n'
        f'"profile" in {ours} &&\n{ours}.profile == "{profile}"'
    )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": profile_class_name(profile)},
        "spec": {"selectors": [{"cel": {"expression": selector}}]},
    }


def classes_of_modes(driver: str, modes: Iterable[Mode]) -> tuple[str, ...]:
    """Names of the classes by which devices of these modes are asked for, sorted."""
    return tuple(sorted({class_name(driver, _KINDS[mode]) for mode in modes if mode in _KINDS}))
