"""A node without hardware: a simulated kernel with the kernel's rules for PCI drivers, and a simulated kubelet."""
