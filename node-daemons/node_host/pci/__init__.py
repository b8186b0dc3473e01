"""PCI functions, their IOMMU groups and their VFIO drivers, as the kernel shows them."""
