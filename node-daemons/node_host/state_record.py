"""NPUNodeState as a daemon keeps it: what was read, and what could be understood of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from crds.models.base import faults_of
from crds.models.node_state import NodeStateSpec, NodeStateStatus, NPUNodeState
from crds.yaml_documents import YAMLError, read_documents

_MAX_BYTES: Final = 8 << 20
_SHOWN: Final = 3


class DesiredFileError(Exception):
    """A file with orders cannot be used; the text names file, field and fault."""


@dataclass(frozen=True, slots=True)
class StateRecord:
    """One object. ``metadata`` and ``status`` are as read, for writing the status back; ``fault`` says what is wrong.

    ``spec`` is None when it cannot be understood. A status that cannot be understood is none: it is written anew.
    """

    metadata: dict[str, Any]
    raw_status: dict[str, Any]
    spec: NodeStateSpec | None
    status: NodeStateStatus
    fault: str | None = None

    @property
    def generation(self) -> int:
        """metadata.generation."""
        value = self.metadata.get("generation")
        return value if isinstance(value, int) else 0

    @property
    def uid(self) -> str:
        """metadata.uid."""
        return str(self.metadata.get("uid", ""))

    @property
    def observed(self) -> dict[str, Any]:
        """The object as a status writer wants it."""
        return {"metadata": self.metadata, "status": self.raw_status}


def read_state(obj: dict[str, Any]) -> StateRecord:
    """Never raises for what is inside the object."""
    metadata = {key: value for key, value in (obj.get("metadata") or {}).items() if key != "managedFields"}
    status = obj.get("status")
    raw_status = status if isinstance(status, dict) else {}
    try:
        understood = NodeStateStatus.model_validate(raw_status)
    except ValidationError:
        understood = NodeStateStatus()
    try:
        spec = NodeStateSpec.model_validate(obj.get("spec"))
    except ValidationError as error:
        return StateRecord(metadata, raw_status, None, understood, _some(_faults(error, "spec")))
    return StateRecord(metadata, raw_status, spec, understood)


def read_desired_file(path: Path) -> NPUNodeState:
    """An NPUNodeState from a YAML or JSON file, read as kubectl reads it. Raises DesiredFileError with all faults."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise DesiredFileError(f"{path}: {error.strerror or error}") from error
    if len(data) > _MAX_BYTES:
        raise DesiredFileError(f"{path}: more than {_MAX_BYTES} bytes")
    try:
        documents = read_documents(data.decode(), str(path))
    except UnicodeDecodeError as error:
        raise DesiredFileError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except YAMLError as error:
        raise DesiredFileError(f"not YAML: {error}") from error
    contents = [document.content for document in documents]
    if len(contents) != 1 or not isinstance(contents[0], dict) or contents[0].get("kind") != "NPUNodeState":
        raise DesiredFileError(f"{path}: one object of kind NPUNodeState is wanted")
    try:
        # As in a repository: a misspelt field is a fault, not something to leave out.
        return NPUNodeState.strict({key: value for key, value in contents[0].items() if key != "status"})
    except ValidationError as error:
        raise DesiredFileError("\n".join(f"{path}: {fault}" for fault in _faults(error))) from error


def _faults(error: ValidationError, below: str = "") -> list[str]:
    """One line per fault; ``below`` is the field of the object that was read."""
    return [f"{'.'.join(filter(None, (below, place))) or '(top)'}: {text}" for place, text in faults_of(error)]


def _some(faults: list[str]) -> str:
    more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
    return "; ".join(faults[:_SHOWN]) + more
