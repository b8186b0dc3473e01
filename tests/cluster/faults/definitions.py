"""The kind of the policies, taken from a cluster and given back, as when somebody reinstalls npufleet."""

from __future__ import annotations

import asyncio
from typing import Any

from runtime.api import Api, NotFound
from runtime.resources import NPU_NODE_POLICIES, Resource

Object = dict[str, Any]
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)
POLICY_CRD = "npunodepolicies.npufleet.io"


async def uninstall_crd(api: Api) -> Object:
    """Remove the kind of the policies, with all of them; returns its definition once it is gone."""
    crd = await api.get(CRDS, POLICY_CRD)
    await api.delete(CRDS, POLICY_CRD)
    await _absent(api, CRDS, POLICY_CRD)
    return crd


async def install_crd(api: Api, crd: Object) -> None:
    body = {"metadata": {"name": crd["metadata"]["name"]}, "spec": crd["spec"]}
    for key in ("labels", "annotations"):
        if key in crd["metadata"]:
            body["metadata"][key] = crd["metadata"][key]
    await api.create(CRDS, body)
    async with asyncio.timeout(30):
        while True:
            conditions = ((await api.get(CRDS, crd["metadata"]["name"])).get("status") or {}).get("conditions") or []
            if any((each["type"], each["status"]) == ("Established", "True") for each in conditions):
                break
            await asyncio.sleep(0.1)
        while True:  # and served, which is a moment later
            try:
                await api.list(NPU_NODE_POLICIES)
            except NotFound:
                await asyncio.sleep(0.1)
            else:
                return


async def _absent(api: Api, resource: Resource, name: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await api.get(resource, name)
            except NotFound:
                return
            await asyncio.sleep(0.1)
