"""The files of the simulated kernel: rendered from its state, put in place so that no reader sees half of one."""
