"""The node-policy planner: pure functions from objects to what has to be written. No I/O, no clock, no randomness.

`plan(world, now)` is the way in; `read_policy`, `read_node` and `read_state` make its records from API objects.
"""

from controllers.node_policy.plan.judgements import Cache
from controllers.node_policy.plan.planner import Plan, SpecChange, plan
from controllers.node_policy.plan.read import read_node, read_policy, read_state
from controllers.node_policy.plan.view import NodeView, PolicyView, StateView, World

__all__ = [
    "Cache",
    "NodeView",
    "Plan",
    "PolicyView",
    "SpecChange",
    "StateView",
    "World",
    "plan",
    "read_node",
    "read_policy",
    "read_state",
]
