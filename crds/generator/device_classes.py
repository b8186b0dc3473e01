"""DeviceClasses as YAML: the manifests of the base, and the text for any other driver name.

Only fields that Kubernetes 1.34 has; a server that does not know `extendedResourceName` yet drops it.
"""

from collections.abc import Iterable
from typing import Any, Final

import yaml

from crds.catalogue import Catalogue
from crds.device_classes import BASE_DRIVERS, device_classes, profile_class, profile_class_name

HEADER: Final = (
    "# Generated from crds/device_classes.py by `python -m crds.generator`; change that module, not this file.\n"
)
KUSTOMIZATION: Final = "kustomization.yaml"


def manifests() -> dict[str, str]:
    """Text by file name: the classes of each driver name of the base, and the kustomization that lists them."""
    files = {f"{driver}.yaml": HEADER + device_class_documents(driver) for driver in BASE_DRIVERS}
    return files | _kustomization(files)


def profile_manifests(catalogue: Catalogue) -> dict[str, str]:
    """Text by file name: a class for each vGPU profile that the catalogue knows, and the kustomization of them all."""
    profiles = sorted({profile.name for product in catalogue.products.values() for profile in product.profiles})
    files = {f"{profile_class_name(profile)}.yaml": HEADER + _yaml(profile_class(profile)) for profile in profiles}
    return files | _kustomization(files)


def _kustomization(files: Iterable[str]) -> dict[str, str]:
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(files),
    }
    return {KUSTOMIZATION: HEADER + _yaml(content)}


def device_class_documents(driver: str) -> str:
    """Both classes of a driver name, as YAML documents."""
    return "---\n".join(_yaml(found) for found in device_classes(driver))


class _Readable(yaml.SafeDumper):
    """Expressions of several lines stand as they are written."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _text)


def _yaml(value: dict[str, Any]) -> str:
    return yaml.dump(value, Dumper=_Readable, sort_keys=False, width=120, allow_unicode=True)
