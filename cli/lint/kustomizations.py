"""Which files are parts that a kustomization puts together: they are no objects, and mean nothing by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from crds.yaml_documents import read_all

KUSTOMIZATION_NAMES: Final = frozenset({"kustomization.yaml", "kustomization.yml", "Kustomization"})
_KEYS: Final = (
    "patches",
    "patchesJson6902",
    "patchesStrategicMerge",
    "replacements",
    "transformers",
    "configurations",
    "generators",
)


class Above:
    """The kustomizations in the directory of a file and in those above it, up to the top of the repository."""

    def __init__(self) -> None:
        self._parts: dict[Path, dict[Path, str]] = {}

    def using(self, path: Path) -> str | None:
        """The kustomization that the file is a part of; None where there is none."""
        here = resolved(path)
        directory = path.absolute().parent
        for above in (directory, *directory.parents):
            found = self._of(above).get(here)
            if found is not None:
                return found
            if (above / ".git").exists():
                break
        return None

    def _of(self, directory: Path) -> dict[Path, str]:
        if directory not in self._parts:
            found: dict[Path, str] = {}
            for name in sorted(KUSTOMIZATION_NAMES):
                if (directory / name).is_file():
                    found |= dict.fromkeys(parts_of(directory / name), str(directory / name))
            self._parts[directory] = found
        return self._parts[directory]


def parts_of(kustomization: Path) -> Iterator[Path]:
    """Files that a kustomization uses, and that are no objects of their own."""
    try:
        documents = read_all(kustomization.read_text(encoding="utf-8")).documents
    except (OSError, UnicodeDecodeError):
        return  # told when its own turn comes
    for document in documents:
        if not isinstance(document.content, dict):
            continue
        for key in _KEYS:
            items = document.content.get(key)
            for item in items if isinstance(items, list) else []:
                name = item.get("path") if isinstance(item, dict) else item
                if isinstance(name, str) and "\n" not in name and "\x00" not in name:
                    yield resolved(kustomization.parent / name)


def resolved(path: Path) -> Path:
    """The path without links, as far as there is one."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a loop of links
        return path.absolute()
