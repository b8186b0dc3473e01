"""The API: models (the single source), the manifests and docs generated from them, and the hardware catalogue."""
