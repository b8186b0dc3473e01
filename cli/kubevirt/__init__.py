"""KubeVirt's own configuration, made from what is in Git."""
