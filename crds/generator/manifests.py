"""CustomResourceDefinitions as YAML texts.

Only features that Kubernetes 1.34 has are used; the schema carries no defaults, so that an object read back equals the
object that was written.
"""

from typing import Any, Final

import yaml

from crds.generator.schema import structural_schema
from crds.models.kinds import CATEGORY, KINDS, Column, Kind

HEADER: Final = "# Generated from crds/models by `python -m crds.generator`; change the models, not this file.\n"
KUSTOMIZATION: Final = "kustomization.yaml"


def crd(kind: Kind) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.crd_name},
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": [kind.short_name],
                "categories": [CATEGORY],
            },
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [
                {
                    "name": kind.version,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [_column(column) for column in kind.columns],
                    "schema": {"openAPIV3Schema": structural_schema(kind.model)},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def manifests() -> dict[str, str]:
    """Text by file name: one manifest per kind, and the kustomization that lists them."""
    files = {f"{kind.plural}.yaml": HEADER + _yaml(crd(kind)) for kind in KINDS}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(files),
    }
    return files | {KUSTOMIZATION: HEADER + _yaml(kustomization)}


def _column(column: Column) -> dict[str, Any]:
    out: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.json_path}
    if column.description:
        out["description"] = column.description
    if column.priority:
        out["priority"] = column.priority
    return out


class _Plain(yaml.SafeDumper):
    """No anchors: equal parts of a schema are written out each time."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(value: Any) -> str:
    return yaml.dump(value, Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)
