"""The kernel lab: a real Linux guest with SR-IOV, IOMMU groups and VFIO for tests, without hardware.

Host side: `kernel_packages`, `initramfs`, `machine`, `accelerator`, `guest_process`, `host_plugin`. Guest side:
`guest_plugin`, `guest_side`. Both sides: `roles` (what is in the machine) and `share` (the files they talk through).
"""
