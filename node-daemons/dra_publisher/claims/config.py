"""How a claim, or the class of its devices, may ask for a VFIO device to be given: the opaque parameters. Pure.

    opaque:
      driver: npufleet.io
      parameters:
        apiVersion: npufleet.io/v1alpha1
        kind: VFIODeviceConfig
        iommu: IOMMUFD          # Auto (default), Legacy or IOMMUFD

Nothing else is known, and what is not known is an error: a word that is passed over would be a wish that nobody hears.
The node policy sets the bounds: a claim chooses only where the policy says Auto.
"""

from collections.abc import Iterable
from typing import Any, Final

from crds.models.base import API_VERSION
from crds.models.modes import IOMMUBackend
from crds.near_matches import did_you_mean
from dra_publisher.claims.allocation import OpaqueConfig, Source

KIND: Final = "VFIODeviceConfig"
_FIELDS: Final = ("apiVersion", "kind", "iommu")


class ConfigError(ValueError):
    """The parameters are not what this driver takes; the text names the field and what it may be."""


def decode(parameters: Any) -> IOMMUBackend:
    """The wish in one set of parameters. Raises ConfigError for anything that is not exactly one."""
    if not isinstance(parameters, dict):
        raise ConfigError(f"parameters is no object; write apiVersion: {API_VERSION}, kind: {KIND}")
    if parameters.get("apiVersion") != API_VERSION or parameters.get("kind") != KIND:
        found = f"{parameters.get('apiVersion')!r} {parameters.get('kind')!r}"[:120]
        raise ConfigError(f"parameters are of {found}; this driver takes apiVersion: {API_VERSION}, kind: {KIND}")
    unknown = next((str(name) for name in parameters if name not in _FIELDS), None)
    if unknown is not None:
        hint = did_you_mean(unknown[:60], _FIELDS) or f"; there are {', '.join(_FIELDS)}"
        raise ConfigError(f"parameters.{unknown[:60]}: there is no such field{hint}")
    wish = parameters.get("iommu", IOMMUBackend.AUTO)
    if wish not in tuple(IOMMUBackend):
        hint = did_you_mean(str(wish)[:60], IOMMUBackend) if isinstance(wish, str) else ""
        raise ConfigError(f"parameters.iommu: {str(wish)[:60]!r} is not {', '.join(IOMMUBackend)}{hint}")
    return IOMMUBackend(wish)


def wished(configs: Iterable[OpaqueConfig], request: str) -> IOMMUBackend | None:
    """What is wished for a request: the claim's word over the class's, the later over the earlier; None: no word.

    Raises ConfigError for any configuration of the request that cannot be read, also for one that another overrides.
    """
    found: dict[Source, IOMMUBackend | None] = dict.fromkeys(Source) | {
        config.source: decode(config.parameters) for config in configs if config.applies_to(request)
    }
    return found[Source.CLAIM] or found[Source.CLASS]


def refuse_for_others(configs: Iterable[OpaqueConfig], request: str, device: str) -> None:
    """For a device that is not given through VFIO. Raises ConfigError when a configuration names its request; one for
    all requests is for those that it can be for.
    """
    for config in configs:
        decode(config.parameters)
        if config.requests and config.applies_to(request):
            raise ConfigError(f"{KIND} is for VFIO devices; request {request} got {device}")


def settled(policy: IOMMUBackend, wish: IOMMUBackend | None) -> IOMMUBackend:
    """What the device is given with. Raises ConfigError where the claim asks for what the node policy does not give."""
    if wish is None or wish in (policy, IOMMUBackend.AUTO):
        return policy
    if policy is not IOMMUBackend.AUTO:
        raise ConfigError(f"parameters.iommu: {wish} is asked for, and the node policy gives this device {policy} only")
    return wish
