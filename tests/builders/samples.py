"""The sample objects that ship with npufleet, read as kubectl reads them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crds.models.kinds import BY_NAME
from crds.yaml_documents import read_documents

FOLDER = Path(__file__).parents[2] / "kustomize" / "samples"


@dataclass(frozen=True, slots=True)
class InvalidSample:
    """An object with one fault: the field that the API server names, and a part of its message."""

    name: str
    path: Path
    field: str
    message: str
    object: dict[str, Any]


def _objects(path: Path) -> list[dict[str, Any]]:
    return [document.content for document in read_documents(path.read_text(encoding="utf-8"), path.name)]


def _invalid(path: Path) -> InvalidSample:
    text = path.read_text(encoding="utf-8")
    expected = dict(re.findall(r"^# (field|message): (.+)$", text, re.MULTILINE))
    return InvalidSample(path.stem, path, expected["field"], expected["message"], _objects(path)[0])


VALID = [found for path in sorted(FOLDER.glob("*.yaml")) for found in _objects(path) if found["kind"] in BY_NAME]
INVALID = [_invalid(path) for path in sorted((FOLDER / "invalid").glob("*.yaml"))]
