"""Reading descriptions: YAML, by file or by the name of a shipped one, with ``extends: NAME`` for what a node shares
with another.

An extending description is laid over the shipped one that it names: mappings are merged key by key, entries of lists
replace those with the same address, name, mount point or pid, and are added otherwise; anything else is replaced.
"""

import functools
import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from simulated_node.description import DescriptionError, Device, HostDescription, KnownDrivers

_HERE = Path(__file__).parent
DESCRIPTIONS = _HERE / "descriptions"
_KNOWN_DRIVERS = _HERE / "known_drivers.yaml"
_EXTENDS = "extends"
_DEPTH = 8
_IDENTITIES = ("address", "name", "point", "pid")

T = TypeVar("T", bound=BaseModel)


def load_description(name_or_path: str | Path) -> HostDescription:
    """A shipped description by name ("node-atom"), or any by file. DescriptionError names file, field and fault."""
    path = Path(name_or_path)
    if isinstance(name_or_path, str) and re.fullmatch(r"[a-z0-9-]+", name_or_path):
        path = _shipped(name_or_path)
    return parse_description(_read(path), source=path.name)


def parse_description(text: str, *, source: str = "description") -> HostDescription:
    """A description from YAML; DescriptionError names each wrong field."""
    return _checked(HostDescription, _extended(_yaml(text, source), source, _DEPTH), source)


def parse_device(fields: dict[str, Any]) -> Device:
    """One device in the form of a description, for hot-plugging it."""
    return _checked(Device, fields, "device")


def shipped_descriptions() -> list[str]:
    return sorted(path.stem for path in DESCRIPTIONS.glob("*.yaml"))


@functools.cache
def known_drivers() -> KnownDrivers:
    return _checked(KnownDrivers, _yaml(_read(_KNOWN_DRIVERS), _KNOWN_DRIVERS.name), _KNOWN_DRIVERS.name)


def _shipped(name: str) -> Path:
    if name not in shipped_descriptions():
        raise DescriptionError(f"no description is called {name!r}; shipped are {', '.join(shipped_descriptions())}")
    return DESCRIPTIONS / f"{name}.yaml"


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DescriptionError(f"{path}: {error}") from error


def _yaml(text: str, source: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DescriptionError(f"{source}: not YAML: {error}") from error


def _extended(document: Any, source: str, depth: int) -> Any:
    if not isinstance(document, dict) or _EXTENDS not in document:
        return document
    own = dict(document)
    name = own.pop(_EXTENDS)
    if not isinstance(name, str) or depth == 0:
        raise DescriptionError(f"{source}: {_EXTENDS}: {name!r} is not the name of a description that ends somewhere")
    path = _shipped(name)
    return _laid_over(_extended(_yaml(_read(path), path.name), path.name, depth - 1), own)


def _laid_over(base: Any, own: Any) -> Any:
    if isinstance(base, dict) and isinstance(own, dict):
        merged = {key: _laid_over(base[key], own[key]) if key in base else own[key] for key in own}
        return {**base, **merged}
    if isinstance(base, list) and isinstance(own, list):
        replaced = {_identity(entry) for entry in own} - {None}
        return [entry for entry in base if _identity(entry) not in replaced] + own
    return own


def _identity(entry: Any) -> str | None:
    if not isinstance(entry, dict):
        return None
    return next((f"{key}={entry[key]}" for key in _IDENTITIES if key in entry), None)


def _checked(model: type[T], value: Any, source: str) -> T:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        faults = "\n".join(
            f"{source}: {'.'.join(str(part) for part in fault['loc']) or 'document'}: "
            f"{fault['msg']}{_hint(fault['input'])}"
            for fault in error.errors()
        )
        raise DescriptionError(faults) from None


def _hint(given: Any) -> str:
    """Addresses and ids look like numbers to YAML."""
    return f" (write it in quotes, YAML reads {given})" if isinstance(given, int | float) else ""
