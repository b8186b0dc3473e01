"""A node that runs pods: a real kubelet and containerd in namespaces of their own, on a machine without Docker."""
