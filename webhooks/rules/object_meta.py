"""The part of metav1.ObjectMeta that the API server checks, as a schema like those of our kinds.

Source: k8s.io/apimachinery ``api/validation.ValidateObjectMeta``: names are DNS-1123 subdomains, labels and the keys of
annotations have the form of qualified names.
"""

from typing import Any, Final

_TEXT: Final = {"type": "string", "maxLength": 262144}
_NAME: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": 253,
    "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    "description": "The object's name: lower-case letters, digits, - and .",
}
_LABEL: Final = {"type": "string", "maxLength": 63, "pattern": r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"}
_TIME: Final = {"type": "string", "format": "date-time", "maxLength": 64}

OBJECT_META: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": _NAME,
        "generateName": _TEXT,
        "namespace": {
            "type": "string",
            "maxLength": 63,
            "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        },
        "labels": {"type": "object", "additionalProperties": _LABEL},
        "annotations": {"type": "object", "additionalProperties": _TEXT},
        "uid": _TEXT,
        "resourceVersion": _TEXT,
        "selfLink": _TEXT,
        "generation": {"type": "integer"},
        "creationTimestamp": _TIME,
        "deletionTimestamp": _TIME,
        "deletionGracePeriodSeconds": {"type": "integer"},
        "finalizers": {"type": "array", "items": _TEXT},
        "ownerReferences": {"type": "array", "items": {"type": "object"}},
        "managedFields": {"type": "array", "items": {"type": "object"}},
    },
}
