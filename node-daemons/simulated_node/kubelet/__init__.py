"""A kubelet that runs nothing: what the control plane must see of a live node, and no container."""
