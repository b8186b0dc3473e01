"""What a daemon has told of its node: its part of the status as it stands, and how it is written."""

import logging

from crds.models.node_state import NodeStateStatus
from node_host.state_record import StateRecord
from runtime.errors import ApiError, Conflict, NotFound
from runtime.status_writer import StatusWriter

_log = logging.getLogger(__name__)


class ReportedStatus:
    """The status of one NPUNodeState for a daemon that writes some parts of it."""

    def __init__(self, statuses: StatusWriter) -> None:
        self._statuses = statuses
        self._standing: tuple[str, NodeStateStatus] | None = None

    def of(self, record: StateRecord) -> NodeStateStatus:
        """The status as it stands: what this process wrote last, or, after a start, what is there."""
        if self._standing is not None and self._standing[0] == record.uid:
            return self._standing[1]
        return record.status

    async def write(self, record: StateRecord, parts: NodeStateStatus) -> str | None:
        """Write the parts that are the daemon's; why they could not be written, or None."""
        try:
            await self._statuses.write(record.observed, parts.to_object())
        except (NotFound, Conflict) as error:
            _log.info("The status was not written, the object has changed: %s", error)
            return None
        except ApiError as error:
            _log.warning("The status was not written: %s", error)
            return f"the status was not written: {error}"
        self._standing = (record.uid, parts)
        return None
