"""A node without hardware: a simulated kernel that obeys the kernel's rules for PCI drivers, and a simulated kubelet."""
