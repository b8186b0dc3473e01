"""What only a checkout has: manifests and build inputs are no part of the installed package."""

from __future__ import annotations

from pathlib import Path

from cli.errors import CommandError

# Of an installed package this is the folder that holds all packages.
ROOT = Path(__file__).resolve().parents[1]
KUSTOMIZE_BASE = ROOT / "kustomize" / "base"


def require_checkout(what: str) -> None:
    """Raises CommandError when this is an installed package: `what` needs the manifests of a checkout."""
    if not (KUSTOMIZE_BASE / "kustomization.yaml").is_file():
        raise CommandError(
            f"{what} applies kustomize/base, which an installed package does not have (nothing in {KUSTOMIZE_BASE}): "
            "run it from a checkout of npufleet (`make demo`)"
        )
