"""What a claim gives a pod: read from its allocation, checked, and answered to the kubelet."""
