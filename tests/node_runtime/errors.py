"""The failures of the node runtime that a person can act on."""

from __future__ import annotations

from cli.errors import CommandError


class NodeRuntimeError(CommandError):
    """The node cannot be built, started, entered or stopped. The text names the cause and what to do."""
