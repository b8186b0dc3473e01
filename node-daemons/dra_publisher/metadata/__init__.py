"""What a workload reads of its devices, in its container (KEP-5304)."""
