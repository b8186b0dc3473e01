"""The rules of the simulated kernel: their registry, and the reference page made from it."""
