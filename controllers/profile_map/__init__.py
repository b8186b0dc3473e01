"""VGPUProfileMap: what has become of the vGPUs that it asks for. Nothing is ordered from here."""
