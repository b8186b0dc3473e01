"""Devices of claims, as a kubelet gives them to pods: plugins, claims, and what it tells others of them."""
