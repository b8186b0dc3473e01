"""Controllers, a folder per kind: a pure planner and a thin kopf adapter."""
