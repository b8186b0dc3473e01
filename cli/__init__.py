"""The command line: what a platform engineer types, and the local control plane that demo and tests run on."""
