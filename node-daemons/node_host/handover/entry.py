"""What a token is for: one order, told by the hash of its entry. Pure."""

import hashlib
import json

from crds.models.node_state import DesiredDevice


def entry_digest(entry: DesiredDevice) -> str:
    """SHA-256 (64 hex digits) of the canonical JSON (sorted keys, no blanks) of an entry of spec.devices as the API has
    it: fields that are not set are left out, so a new version's new fields change nothing until they are used.
    """
    text = json.dumps(entry.to_object(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
