"""Admission: pure validation rules, shared by the server and the linter, and the admission server itself.

The package holds the room's place in the layer contracts; the API's schema and CEL rules are what refuses bad objects
until rules live here.
"""
