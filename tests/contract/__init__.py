"""What a host does when it is written to, as statements that run alike on the simulated kernel and on Linux itself."""
