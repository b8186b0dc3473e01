"""What pods may have of a node: pure, and in words of our own; `slices` puts it into those of the API."""
