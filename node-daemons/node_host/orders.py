"""What is ordered of a node, as last read, and why it is not followed: for whoever carries out a part of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from crds.models.node_state import NodeStateSpec, NodeStateStatus
from node_host.node_identity import NodeIdentity, Reader
from node_host.state_record import StateRecord, read_state
from runtime.errors import NotFound
from runtime.resources import NPU_NODE_STATES

_NO_STATUS: Final = NodeStateStatus()
_CONFIRM_EVERY: Final = 300.0  # seconds after which the Node is asked for its UID again


@dataclass(frozen=True, slots=True)
class Orders:
    """``spec`` is None when there is no NPUNodeState. While it cannot be understood (``unreadable`` says why) it is the
    last one that could, or None.

    ``node_uid`` is that of the Node that runs here, None when it cannot be read; ``status`` the status as it stands;
    ``advertised`` the extended resources that the Node offers to pods, with their amounts.
    """

    spec: NodeStateSpec | None
    node_uid: str | None
    generation: int = 0
    status: NodeStateStatus = _NO_STATUS
    unreadable: str | None = None
    advertised: Mapping[str, str] = field(default_factory=dict)

    @property
    def held(self) -> str | None:
        """Why nothing is changed for these orders, or None."""
        if self.unreadable is not None:
            return f"the orders cannot be understood: {self.unreadable}"
        if self.spec is None:
            return "there is no NPUNodeState for this node: nothing is changed"
        if self.node_uid is None:
            return "the UID of this node cannot be read: nothing is changed"
        if self.spec.node_uid != self.node_uid:
            wanted = self.spec.node_uid
            return f"the orders are for the node with UID {wanted}, this one has {self.node_uid}: nothing is changed"
        return None


class StandingOrders:
    """The orders over the rounds of a daemon: those that cannot be understood leave the last ones standing, held."""

    def __init__(self, identity: NodeIdentity, *, clock: Callable[[], float]) -> None:
        self._identity = identity
        self._clock = clock
        self._confirmed = float("-inf")
        self.last = Orders(None, None)
        """As they were read last."""
        self.node_uid = ""
        """The last UID of the Node that was known, "" before there was one."""

    async def read(self, record: StateRecord | None, status: NodeStateStatus) -> Orders:
        """The orders of the object as it is now, None when there is none; ``status`` is its status as it stands."""
        now = self._clock()
        again = now - self._confirmed >= _CONFIRM_EVERY
        ordered = record.spec.node_uid if record is not None and record.spec is not None else self.node_uid
        uid = await self._identity.uid(ordered, again=again)
        if again:
            self._confirmed = now
        self.node_uid = uid or self.node_uid
        if record is None:
            self.last = Orders(None, uid, advertised=self._identity.extended)
        else:
            spec = record.spec if record.spec is not None else self.last.spec
            self.last = Orders(spec, uid, record.generation, status, record.fault, self._identity.extended)
        return self.last


async def read_orders(api: Reader, node: str) -> tuple[Orders, StateRecord | None]:
    """The orders of a node as the API has them now, and the object, None when there is none. Raises ApiError."""
    try:
        record = read_state(await api.get(NPU_NODE_STATES, node))
    except NotFound:
        record = None
    standing = StandingOrders(NodeIdentity(api, node), clock=lambda: 0.0)
    return await standing.read(record, record.status if record is not None else _NO_STATUS), record
