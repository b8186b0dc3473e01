"""A real Kubernetes control plane on this machine, for the demo, the tests and anyone who wants to try a manifest."""
