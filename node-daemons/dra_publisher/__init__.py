"""The DRA publisher: offers a node's devices in ResourceSlices and prepares them for pods as a kubelet plugin."""
