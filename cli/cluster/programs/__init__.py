"""The programs of the control plane: which ones, from which sources, and built when they are not there yet."""
