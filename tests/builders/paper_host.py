"""A host that is nothing but files in a directory, laid out by a test: what no simulated machine has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from node_host.host import KernelFiles

LINK = "-> "


def paper_host(root: Path, files: Mapping[str, str]) -> KernelFiles:
    """The host below ``root``. A text that begins with `-> ` is a link to the host path that follows; a path that
    ends with `/` is a directory."""
    for path, content in files.items():
        place = root / path.lstrip("/")
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if content.startswith(LINK):
            target = content.removeprefix(LINK)
            place.symlink_to("/".join([".."] * (path.count("/") - 1)) + target)
        else:
            place.write_text(content)
    return KernelFiles(root)
