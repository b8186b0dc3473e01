"""Names of the API resources that npufleet reads or writes, and how their URLs are built.

Raw JSON is used everywhere instead of generated models: it costs a fraction of the time and memory, and keeps fields
that a generated model does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """One served resource: `group` is "" for the core group, `plural` is the segment in the URL."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """The `apiVersion` of an object, e.g. "v1" or "npufleet.io/v1alpha1"."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """The name as RBAC and kubectl spell it, e.g. "nodes" or "npunodepolicies.npufleet.io"."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection or of one object.

        Without a namespace a namespaced resource addresses all namespaces, which the API server serves for list and
        watch only; so a name without its namespace is refused here with ValueError.
        """
        if namespace is not None and not self.namespaced:
            raise ValueError(f"{self.full_name} is cluster-scoped, but namespace {namespace!r} was given")
        if name is not None and self.namespaced and not namespace:
            raise ValueError(f"{self.full_name} is namespaced: {name!r} needs a namespace")
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
            if subresource is not None:
                parts.append(subresource)
        return "/".join(parts)


NAMESPACE = "npufleet-system"
"""Namespace of every Lease, ConfigMap and Secret of npufleet."""

NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod", namespaced=True)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", namespaced=True)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event", namespaced=True)
VALIDATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)

NPU_NODE_POLICIES = Resource("npufleet.io", "v1alpha1", "npunodepolicies", "NPUNodePolicy", namespaced=False)
VGPU_PROFILE_MAPS = Resource("npufleet.io", "v1alpha1", "vgpuprofilemaps", "VGPUProfileMap", namespaced=False)
VNPU_QUOTAS = Resource("npufleet.io", "v1alpha1", "vnpuquotas", "VNPUQuota", namespaced=True)
NPU_NODE_STATES = Resource("npufleet.io", "v1alpha1", "npunodestates", "NPUNodeState", namespaced=False)
