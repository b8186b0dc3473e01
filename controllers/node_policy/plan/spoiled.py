"""The judgement on a node that could not be judged, for a fault of this program: everything there stays as it is."""

from collections.abc import Iterable, Sequence

from controllers.node_policy.plan.changes import Changes
from controllers.node_policy.plan.evaluate import Evaluation, Obstacle, Share
from controllers.node_policy.plan.orders import Order
from controllers.node_policy.plan.progress import Progress, Verdict
from controllers.node_policy.plan.users import Usage
from controllers.node_policy.plan.view import BlockerReason, NodeView, PolicyView, StateView
from crds.models.node_state import Intent


def spoiled(node: NodeView, state: StateView, policies: Iterable[PolicyView], fault: str) -> Evaluation:
    """A judgement that changes nothing, and that tells every policy concerned of the fault.

    How its devices are is not known, so the node counts against the limits of those whose orders it has.
    """
    message = f"a fault of npufleet, whose log says more; the orders of the node stay as they are: {fault}"
    selecting = {policy.name for policy in policies if _selects(policy, node)}
    orders = state.orders.devices
    away = {order.policy for order in orders if order.intent is not Intent.HOLD}
    if node.cordoned_by:
        away.add(node.cordoned_by)
    if state.rollout is not None and state.rollout.drain is not None:
        away.add(state.rollout.drain.policy)
    obstacle = Obstacle(True, "", BlockerReason.INTERNAL_ERROR, message, Progress.BLOCKED)
    concerned = selecting | away | {order.policy for order in orders}
    return Evaluation(
        node=node,
        state=state,
        problem=message,
        target=state.orders,
        changes=Changes(state.orders, state.orders),
        worst=Verdict(Progress.BLOCKED, BlockerReason.INTERNAL_ERROR, message),
        shares={name: _share(name, orders, obstacle, name in selecting, name in away) for name in sorted(concerned)},
        orphans=frozenset(),
        usage=Usage((), {}),
        waits={},
        undone={},
        moving=True,
    )


def _selects(policy: PolicyView, node: NodeView) -> bool:
    try:
        return policy.spec is not None and policy.spec.node_selector.matches(node.labels)
    except Exception:  # it may be the very fault
        return False


def _share(policy: str, orders: Sequence[Order], obstacle: Obstacle, selected: bool, away: bool) -> Share:
    own = [order for order in orders if order.policy == policy]
    releasing = sum(order.intent is Intent.RELEASE for order in own)
    return Share(
        selected=selected,
        devices=len(own) - releasing,
        ready=0,
        releasing=releasing,
        updated=False,
        pending_inventory=False,
        removal_held=False,
        map_faults=frozenset(),
        unavailable=away,
        surely=False,
        progress=frozenset({Progress.BLOCKED}),
        obstacles=(obstacle,),
        clashes=frozenset(),
    )
