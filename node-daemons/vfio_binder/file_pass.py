"""One pass of the binder with orders from a file."""

from functools import partial
from pathlib import Path

from crds.models.node_state import NPUNodeState
from node_host.file_pass import orders_of, run_pass
from vfio_binder.build import build_binder
from vfio_binder.text import has_findings, show


def run_from_file(host_root: Path, desired: NPUNodeState, *, dry_run: bool) -> int:
    """Print plan and outcome; the exit code."""
    _, binder = build_binder(host_root)
    make = binder.dry_run if dry_run else binder.run
    return run_pass(lambda: make(orders_of(desired)), show=partial(show, dry_run=dry_run), has_findings=has_findings)
