"""The profile writer: makes the vGPUs of this node's cards what its NPUNodeState orders."""
