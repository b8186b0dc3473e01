"""Which claims a pod uses, and which of its containers each of them is for. Pure: plain objects of the API."""

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


class PodNotReadyError(Exception):
    """The pod cannot be started yet; the text says what it waits for."""


@dataclass(frozen=True, slots=True)
class PodName:
    """One pod."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """A container's part of a claim; ``request`` empty: all of it."""

    container: str
    claim: str
    request: str = ""


@dataclass(frozen=True, slots=True)
class PodClaims:
    """Names of ResourceClaims, in the pod's namespace, and who of its containers uses them."""

    pod: PodName
    claims: tuple[str, ...] = ()
    uses: tuple[ContainerClaim, ...] = ()
    containers: tuple[str, ...] = ()


def claims_of(pod: Object) -> PodClaims:
    """The claims of a pod. Raises PodNotReadyError while one that is made from a template is not there yet."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    name = PodName(str(metadata["namespace"]), str(metadata["name"]), str(metadata["uid"]))
    made = {one["name"]: one.get("resourceClaimName") for one in status.get("resourceClaimStatuses") or []}
    names: dict[str, str] = {}
    for one in spec.get("resourceClaims") or []:
        given = one.get("resourceClaimName")
        if given is None and one["name"] not in made:
            raise PodNotReadyError(f"the ResourceClaim of {one['name']} has not been made from its template yet")
        found = given or made.get(one["name"])
        if found is not None:  # a template may turn out to need none
            names[one["name"]] = str(found)
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    uses = [
        ContainerClaim(container["name"], names[use["name"]], use.get("request") or "")
        for container in containers
        for use in (container.get("resources") or {}).get("claims") or []
        if use.get("name") in names
    ]
    extended = status.get("extendedResourceClaimStatus")
    if extended:
        claim = str(extended["resourceClaimName"])
        names["\0extended"] = claim
        uses += [
            ContainerClaim(one["containerName"], claim, one["requestName"])
            for one in extended.get("requestMappings") or []
        ]
    titles = tuple(str(container["name"]) for container in containers)
    return PodClaims(name, tuple(sorted(set(names.values()))), tuple(uses), titles)


def drivers_of(claim: Object, pod: PodName) -> tuple[str, ...]:
    """The drivers of a claim's devices. Raises PodNotReadyError when the pod may not use the claim now."""
    status = claim.get("status") or {}
    title = f"ResourceClaim {pod.namespace}/{claim['metadata']['name']}"
    if not status.get("allocation"):
        raise PodNotReadyError(f"{title} is not allocated")
    if not any(one.get("uid") == pod.uid for one in status.get("reservedFor") or []):
        raise PodNotReadyError(f"{title} is not reserved for pod {pod.namespace}/{pod.name} ({pod.uid})")
    results = (status["allocation"].get("devices") or {}).get("results") or []
    return tuple(sorted({str(result["driver"]) for result in results}))
