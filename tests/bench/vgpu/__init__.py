"""From a boot to the last vGPU: the profile writer beside a bare loop of the same writes."""
