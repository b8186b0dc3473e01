"""An object with every effective value filled in, each value with where it comes from."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic.fields import FieldInfo

from crds.models.base import ABSENT, KubeObject, Model
from crds.models.modes import MODE_BLOCKS
from crds.models.node_policy import DeviceRule


@dataclass(frozen=True, slots=True)
class Effective:
    """A value of an object's spec.

    ``content`` is a scalar, a list of Effective, or a dict of Effective by YAML name. Where a field is absent and no
    value stands for that, ``content`` is None and ``meaning`` says what holds.
    """

    content: Any
    is_given: bool
    meaning: str | None = None


def effective_spec(obj: KubeObject) -> Effective:
    """The spec of an object of one of our kinds, in the order of the model's fields."""
    spec = getattr(obj, "spec", None)
    if not isinstance(spec, Model):
        raise TypeError(f"{type(obj).__name__} has no spec")
    return _of_model(spec, is_given=True)


def _of_model(model: Model, *, is_given: bool) -> Effective:
    found: dict[str, Effective] = {}
    for attribute, info in type(model).model_fields.items():
        value = getattr(model, attribute)
        if isinstance(model, DeviceRule) and attribute in MODE_BLOCKS.values():
            # Blocks of other modes are forbidden, so their absence means nothing.
            if MODE_BLOCKS.get(model.mode) != attribute:
                continue
            value = model.settings
        stated = is_given and attribute in model.model_fields_set and getattr(model, attribute) is not None
        found[info.alias or attribute] = _of_field(value, info, is_given=stated)
    return Effective(found, is_given)


def _of_field(value: Any, info: FieldInfo, *, is_given: bool) -> Effective:
    if not is_given and (value is None or value in ((), {})):
        return Effective(None, is_given=False, meaning=_absent_text(info))
    return _of_value(value, is_given=is_given)


def _of_value(value: Any, *, is_given: bool) -> Effective:
    if isinstance(value, Model):
        return _of_model(value, is_given=is_given)
    if isinstance(value, tuple):
        return Effective([_of_value(item, is_given=is_given) for item in value], is_given)
    if isinstance(value, Mapping):
        return Effective({str(key): _of_value(item, is_given=is_given) for key, item in value.items()}, is_given)
    return Effective(value.value if isinstance(value, Enum) else value, is_given)


def _absent_text(info: FieldInfo) -> str:
    extra = info.json_schema_extra
    return str(extra[ABSENT]) if isinstance(extra, dict) and ABSENT in extra else "nothing"
