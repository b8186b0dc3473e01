"""What a claim costs at npufleet's publisher, beside Kubernetes' own DRA test driver on the same node."""
