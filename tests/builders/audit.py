"""Reading the API server's audit log: what our identities wrote, as the server saw it."""

import json
from pathlib import Path

WRITE_VERBS = {"create", "update", "patch", "delete", "deletecollection"}
OURS = "system:serviceaccount:npufleet-system:"


def writes_of_npufleet(log: Path, *, since: int = 0) -> list[str]:
    """``user verb URI`` of each write by a component of npufleet after the byte offset, Leases apart."""
    found = []
    with log.open("rb") as stream:
        stream.seek(since)
        for line in stream:
            entry = json.loads(line)
            user = entry["user"]["username"]
            if user.startswith(OURS) and entry["verb"] in WRITE_VERBS and entry["objectRef"]["resource"] != "leases":
                found.append(f"{user.removeprefix(OURS)} {entry['verb']} {entry['requestURI']}")
    return found
