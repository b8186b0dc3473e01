"""Which failures of the binder wait before they are tried again."""

from collections.abc import Callable
from typing import Final

from crds.models.bindings import BindingReason as Reason
from node_host import attempts
from node_host.acting.actions import Outcome

_SHORT: Final = frozenset({Reason.GROUP_LOCKED, Reason.CHANGED, Reason.PUBLISHED})
_REMEMBERED: Final = frozenset(
    {
        Reason.BIND_FAILED,
        Reason.FUNCTIONS_FAILED,
        Reason.NO_SRIOV,
        Reason.RESTORE_FAILED,
        Reason.VERIFY_FAILED,
        Reason.INTERNAL_ERROR,
        Reason.GROUP_LOCKED,
        Reason.MODULE_MISSING,
        Reason.DRIVER_MISSING,
        Reason.JOURNAL_UNREADABLE,
        Reason.DEVICE_UNREADABLE,
        Reason.CHANGED,
        Reason.PUBLISHED,
    }
)


class Attempts(attempts.Attempts[Outcome]):
    """Those of one binder."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        """``jitter`` gives 0 to 1."""
        super().__init__(jitter, remembered=_REMEMBERED, short=_SHORT)
