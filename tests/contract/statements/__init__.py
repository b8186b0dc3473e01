"""The statements, by what they are about."""
