"""The time of day, as conditions want it."""

from datetime import UTC, datetime


def now() -> str:
    """RFC 3339 in UTC, in whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
