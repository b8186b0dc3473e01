"""Handing a device that pods may have over to whoever changes it: tokens on the host, and who writes which."""
