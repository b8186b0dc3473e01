"""The failures of the local control plane that a person can act on."""

from __future__ import annotations

from cli.errors import CommandError


class ClusterError(CommandError):
    """The control plane cannot be built, started, reached or stopped. The text names the cause and what to do."""


class ApiCallError(ClusterError):
    """The API server answered a call with an error status (HTTP code in `status`, its own words in the text); `answer`
    is what it sent, a Status as a rule."""

    def __init__(self, status: int, message: str, answer: object = None) -> None:
        super().__init__(message)
        self.status = status
        self.answer = answer
