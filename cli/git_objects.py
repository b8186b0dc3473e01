"""Policies and profile maps in files, read as `npufleet lint` reads them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from cli.errors import CommandError, ExitCode
from cli.lint.objects import take_apart
from cli.lint.sources import collect
from crds.models.base import API_VERSION, faults_of
from crds.models.node_policy import NPUNodePolicy
from crds.models.profile_map import VGPUProfileMap


@dataclass(frozen=True, slots=True)
class GitObjects:
    """What the files have, by name."""

    policies: tuple[NPUNodePolicy, ...]
    maps: tuple[VGPUProfileMap, ...]


def read_git_objects(paths: Iterable[str]) -> GitObjects:
    """The policies and maps of files and directories.

    Raises CommandError for a path that is not there (usage), and for what `npufleet lint` calls an error before it
    looks at rules: half of a fleet is never taken for the whole.
    """
    collected = collect(paths)
    faults = [f"{one.spot.file}: {one.violation.message}" for one in collected.findings if one.is_error]
    policies: dict[str, NPUNodePolicy] = {}
    maps: dict[str, VGPUProfileMap] = {}
    seen: dict[str, str] = {}
    for source in collected.sources:
        taken = take_apart(source)
        faults += [f"{source.name}: {one.violation.message}" for one in taken.findings if one.is_error]
        for found in taken.objects:
            if found.api_version != API_VERSION or found.kind not in ("NPUNodePolicy", "VGPUProfileMap"):
                continue
            if found.title in seen:
                faults.append(
                    f"{source.name}: {found.title} is in {seen[found.title]} already: give one cluster's files"
                )
            seen.setdefault(found.title, source.name)
            try:
                if found.kind == "NPUNodePolicy":
                    policy = NPUNodePolicy.model_validate(found.content)
                    policies[policy.metadata.name or ""] = policy
                else:
                    profile_map = VGPUProfileMap.model_validate(found.content)
                    maps[profile_map.metadata.name or ""] = profile_map
            except ValidationError as error:
                faults += [f"{source.name}: {found.title}: {path}: {fault}" for path, fault in faults_of(error)]
    if faults:
        raise CommandError("\n  ".join(["these files have faults (npufleet lint):", *faults]), ExitCode.FINDINGS)
    return GitObjects(tuple(policies[name] for name in sorted(policies)), tuple(maps[name] for name in sorted(maps)))
