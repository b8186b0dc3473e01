"""The memory of the publisher over its own restarts and those of the host."""
