"""Admission: pure validation rules, shared by the server and the linter, the admission server, and its certificates."""
