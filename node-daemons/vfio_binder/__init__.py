"""The VFIO binder: makes the drivers of a node's devices what its NPUNodeState asks for."""
