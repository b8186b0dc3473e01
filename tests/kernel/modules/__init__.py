"""Kernel modules that stand for hardware in the lab, and what a test in the guest needs to work with them."""
