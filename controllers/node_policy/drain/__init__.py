"""Empties devices that have to change: looks for users, evicts pods, marks Nodes. What to drain, the planner says."""
