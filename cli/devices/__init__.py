"""`npufleet devices`: every accelerator of the fleet in one list, with who has it, or why nobody gets it."""
