"""What was changed by hand, past Git, as the API server's own record of who set which field tells. Pure.

Every controller of a kind that users write tells it in that kind's status, so it is found out in one place.
"""

from controllers.break_glass.by_hand import HandEdit, edited_by_hand

__all__ = ["HandEdit", "edited_by_hand"]
