"""The view of the rules when there is no cluster: what stands in the linted files, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from crds.catalogue import load_catalogue
from crds.models.node_policy import NPUNodePolicy
from crds.models.profile_map import VGPUProfileMap
from crds.models.vnpu_quota import VNPUQuota
from webhooks.rules import UNKNOWN, KnownView, Subject
from webhooks.rules.pointers import EACH
from webhooks.rules.view import Labels


def rendered_view(
    subjects: Iterable[Subject], now: datetime, *, is_whole: bool, namespaces: Mapping[str, Labels] | None = None
) -> KnownView:
    """What the files say of each other. ``is_whole`` False: they are a part of what is applied.

    A part says nothing of what is not in it: maps are known only where every one that the part's policies name is
    there. ``namespaces`` are the labels of the Namespaces among the files: of others nothing is known. Nodes are never
    known from files.
    """
    policies: dict[str, NPUNodePolicy] = {}
    maps: dict[str, VGPUProfileMap] = {}
    quotas: dict[tuple[str, str], VNPUQuota] = {}
    named: set[str] = set()
    has_broken_map = False
    for subject in subjects:
        # Asked of what is written: a policy that is broken elsewhere refers to its map all the same.
        references = subject.each("spec", "devices", EACH, "vgpu", "profileMapRef", "name")
        named |= {name for _, name in references if isinstance(name, str)}
        match subject.model:
            case NPUNodePolicy() as policy:
                policies[subject.name] = policy
            case VGPUProfileMap() as found:
                maps[subject.name] = found
            case VNPUQuota() as quota:
                quotas[subject.namespace, subject.name] = quota
            case None:
                # It is there, but nobody can say what it means: "there is no such map" would be wrong.
                has_broken_map = has_broken_map or subject.kind.model is VGPUProfileMap
    is_known = (is_whole and not has_broken_map) or named <= set(maps)
    return KnownView(
        catalogue=load_catalogue(),
        now=now,
        known_policies=policies,
        known_maps=maps if is_known else UNKNOWN,
        known_quotas=quotas,
        known_namespaces=namespaces or {},
    )
