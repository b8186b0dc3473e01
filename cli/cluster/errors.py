"""The failures of the local control plane that a person can act on; the rest are bugs and keep their traceback."""

from __future__ import annotations


class ClusterError(Exception):
    """The control plane cannot be built, started, reached or stopped. The text names the cause and what to do."""


class ApiCallError(ClusterError):
    """The API server answered a call with an error status (HTTP code in `status`, its own words in the text)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
