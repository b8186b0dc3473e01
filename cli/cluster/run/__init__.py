"""The control plane as processes: what each is started with, that it is ready, that it ends."""
