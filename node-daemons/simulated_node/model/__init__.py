"""The simulated kernel as pure state and rules: no file, no socket, no thread, no clock."""
