"""What to do with each pod that uses a device which has to become free, and how to tell people of it.

Evicted is what comes back elsewhere, or, where the device is withheld, comes back here without it. What nothing would
start again, and what would be back at once, is named and left to people.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from controllers.node_policy.plan.drains import DrainedDevice
from controllers.reading import items, mapping

MAX_BLOCKERS: Final = 16
_LONGEST_TEXT: Final = 512
_MIRROR: Final = "kubernetes.io/config.mirror"
_STATIC_UID: Final = "kubernetes.io/config.hash"
_DEFAULT_GRACE: Final = 30


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the API.

    `owner`: kind and name of its controller, "" without one. `static_uid`: what the kubelet calls a static pod, whose
    mirror this is. `vm`: name of the KubeVirt VM that runs in it. `grace`: seconds that it has to end.
    """

    namespace: str
    name: str
    uid: str
    owner_kind: str = ""
    owner_name: str = ""
    static_uid: str = ""
    vm: str = ""
    grace: int = _DEFAULT_GRACE
    terminating: bool = False
    ended: bool = False

    def __str__(self) -> str:
        text = f"pod {self.namespace}/{self.name}"
        return f"VM {self.namespace}/{self.vm} ({text})" if self.vm else text


class Action(StrEnum):
    """What a drain does with a pod."""

    EVICT = "Evict"
    WAIT = "Wait"
    LEAVE = "Leave"


@dataclass(frozen=True, slots=True)
class Judgement:
    """`text` tells people why a pod is not evicted, or what it is waited for; "" for one that is evicted."""

    action: Action
    text: str = ""


def read_pod(pod: Mapping[str, Any]) -> Pod:
    """The record of a pod of the API."""
    metadata = mapping(pod.get("metadata"))
    spec, status = mapping(pod.get("spec")), mapping(pod.get("status"))
    annotations, labels = mapping(metadata.get("annotations")), mapping(metadata.get("labels"))
    owner = next((one for one in items(metadata.get("ownerReferences")) if one.get("controller") is True), {})
    vm = ""
    if labels.get("kubevirt.io") == "virt-launcher":
        vm = str(annotations.get("kubevirt.io/domain") or labels.get("vm.kubevirt.io/name") or "")
    ending = bool(metadata.get("deletionTimestamp"))
    grace = spec.get("terminationGracePeriodSeconds")
    if ending:
        grace = metadata.get("deletionGracePeriodSeconds", grace)
    return Pod(
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        owner_kind=str(owner.get("kind") or ""),
        owner_name=str(owner.get("name") or ""),
        static_uid=str(annotations.get(_STATIC_UID) or annotations[_MIRROR]) if _MIRROR in annotations else "",
        vm=vm,
        grace=grace if isinstance(grace, int) else _DEFAULT_GRACE,
        terminating=ending,
        ended=status.get("phase") in {"Succeeded", "Failed"},
    )


def judge(pod: Pod, *, by_claim: bool) -> Judgement:
    """What a drain does with `pod`. `by_claim`: it uses the device through a claim, so it does not come back to it."""
    if pod.terminating:
        return Judgement(Action.WAIT, terminating(pod))
    if pod.static_uid:
        return Judgement(Action.LEAVE, f"{pod} is a static pod of the node: take its manifest away there")
    if pod.ended:
        return Judgement(Action.WAIT, f"{pod} has ended, but is still there")
    if not pod.owner_kind:
        return Judgement(Action.LEAVE, f"{pod} has no controller that would start it again: delete it yourself")
    if pod.owner_kind == "DaemonSet" and not by_claim:
        advice = f"keep DaemonSet {pod.owner_name} off the node"
        return Judgement(Action.LEAVE, f"{pod} uses the device without a claim and would be back at once: {advice}")
    return Judgement(Action.EVICT)


def terminating(pod: Pod) -> str:
    """The text for a pod that is on its way out."""
    return f"{pod} is terminating, grace {pod.grace} s"


def find_users(uids: frozenset[str], pods: Iterable[Pod]) -> dict[str, Pod]:
    """Of the pods of a node those whose processes use a device, by the UID under which the node knows them."""
    found = {}
    for pod in pods:
        for uid in {pod.uid, pod.static_uid} & uids:
            found[uid] = pod
    return found


def unknown_user(uid: str, devices: Iterable[DrainedDevice]) -> str:
    """The text for a process of a pod that the API server does not know."""
    places = ", ".join(device.address for device in devices if uid in device.pods)
    return f"a process of pod {uid}, which the API server does not know, uses {places}"


def refused(pod: Pod, message: str, causes: Iterable[str] = ()) -> str:
    """The text for a pod whose eviction was refused, in the words of whoever refused it."""
    return shortened(f"{pod}: {' '.join([message, *causes]).strip()}")


def shortened(text: str) -> str:
    """`text` on one line, and no longer than a status should carry."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 3]}..."


def told(texts: Iterable[str]) -> tuple[str, ...]:
    """Texts as they are shown: each once, sorted, at most 16."""
    return tuple(sorted({shortened(text) for text in texts}))[:MAX_BLOCKERS]
