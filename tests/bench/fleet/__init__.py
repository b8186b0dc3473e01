"""The node-policy controller with a whole fleet: time, writes, processor time, memory, beside a bare loop."""
