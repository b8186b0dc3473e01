"""The host as a daemon sees it: files, PCI and IOMMU model, vetoes, locks, journal, bounded writes."""
