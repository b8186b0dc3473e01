"""Tests that run inside a real Linux guest, and the lab that boots it."""
