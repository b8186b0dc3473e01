"""The API as pydantic models, one module per kind: the single source of manifests, reference docs and effective values.

Everything in this package is pure: no I/O, no clock, no Kubernetes client. Absent fields take the effective value that
the model documents; the schema itself carries no defaults, so that an object read back equals the object in Git.
"""

from crds.models.node_policy import NPUNodePolicy
from crds.models.node_state import NPUNodeState
from crds.models.profile_map import VGPUProfileMap
from crds.models.vnpu_quota import VNPUQuota

__all__ = ["NPUNodePolicy", "NPUNodeState", "VGPUProfileMap", "VNPUQuota"]
