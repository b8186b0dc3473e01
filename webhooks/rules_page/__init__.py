"""Writes the page of the reference that lists the rules."""
