"""Builds a kustomization as kubectl does, so that what is linted is what gets applied."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from cli.cluster.kubectl import find_kubectl
from cli.errors import CommandError, ExitCode
from cli.lint.findings import Finding, of_file
from cli.lint.kustomizations import KUSTOMIZATION_NAMES
from cli.lint.sources import Source
from webhooks.rules.files import BUILD

DEADLINE_SECONDS: Final = 120.0


def build(
    directory: Path, name: str, *, deadline_seconds: float = DEADLINE_SECONDS
) -> tuple[Source | None, list[Finding]]:
    """The objects that the kustomization makes, as one text called ``name``; or None, and why it cannot be built.

    Raises CommandError when there is no kustomization (usage), no kubectl, or no end.
    """
    if not any((directory / file).is_file() for file in KUSTOMIZATION_NAMES):
        raise CommandError(f"{directory} has no kustomization.yaml", ExitCode.USAGE)
    try:
        done = subprocess.run(
            [find_kubectl(), "kustomize", str(directory.resolve())],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=deadline_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"kubectl kustomize {directory} had not ended after {deadline_seconds:.0f} s") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split()).removeprefix("error: ")
        return None, [of_file(BUILD, name, f"kustomize cannot build it: {said[:1000]}")]
    return Source(name, done.stdout.decode(errors="replace"), is_built=True), []
