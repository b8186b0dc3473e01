"""The demo: the main job of npufleet on one machine, with a real API server, real processes and simulated nodes."""
