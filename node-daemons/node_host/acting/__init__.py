"""Changing the host: actions, under locks, remembered in a journal, verified afterwards."""
