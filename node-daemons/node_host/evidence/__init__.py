"""Who uses a device and what the host itself needs: read before anything is decided, and again before a write."""
