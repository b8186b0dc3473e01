"""The sample objects that ship with npufleet, read as kubectl reads them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crds.models.kinds import BY_NAME
from crds.yaml_documents import read_documents
from webhooks.rules import RULES, Layer

FOLDER = Path(__file__).parents[2] / "kustomize" / "samples"


@dataclass(frozen=True, slots=True)
class InvalidSample:
    """An object with one fault: the field that the API server names, a part of the message, and the rules it breaks.

    ``others`` stand before it in its file: what it is judged beside.
    """

    name: str
    path: Path
    field: str
    message: str
    rules: tuple[str, ...]
    object: dict[str, Any]
    others: tuple[dict[str, Any], ...]

    @property
    def by_webhook(self) -> bool:
        """Whether the API server without the webhook takes it."""
        return all(RULES[rule].layer >= Layer.WEBHOOK for rule in self.rules)


def _objects(path: Path) -> list[dict[str, Any]]:
    return [document.content for document in read_documents(path.read_text(encoding="utf-8"), path.name)]


def _invalid(path: Path) -> InvalidSample:
    text = path.read_text(encoding="utf-8")
    expected = dict(re.findall(r"^# (field|message|rules): (.+)$", text, re.MULTILINE))
    *others, subject = _objects(path)
    rules = tuple(expected["rules"].split(", "))
    return InvalidSample(path.stem, path, expected["field"], expected["message"], rules, subject, tuple(others))


VALID = [found for path in sorted(FOLDER.glob("*.yaml")) for found in _objects(path) if found["kind"] in BY_NAME]
INVALID = [_invalid(path) for path in sorted((FOLDER / "invalid").glob("*.yaml"))]
WARNED = [_invalid(path) for path in sorted((FOLDER / "warned").glob("*.yaml"))]
"""Objects that are taken with a warning."""
REFUSED_BY_SCHEMA = [sample for sample in INVALID if not sample.by_webhook]
