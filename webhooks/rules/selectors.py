"""Selectors that select nothing: never an error, for a fleet may be described before it is there."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from controllers.node_policy.plan.match import matches
from controllers.node_policy.plan.view import DeviceView
from crds.models.node_policy import DeviceRule
from crds.models.selectors import LabelSelector, SelectorOperator
from crds.near_matches import did_you_mean
from webhooks.rules.fleet import Fleet, label_values, selected
from webhooks.rules.pointers import EACH
from webhooks.rules.rule import Example, Fault, rule
from webhooks.rules.rule_order import effective_match
from webhooks.rules.selector_logic import asked
from webhooks.rules.subject import Subject
from webhooks.rules.view import UNKNOWN, Labels, View
from webhooks.rules.violation import Severity

_KINDS: Final = ("NPUNodePolicy",)
_MOST_NODES: Final = 200
"""On more nodes than that nobody waits for a look at every device."""

_DEVICES: Final = "devices: [{name: a, match: {products: [RBLN-CA25]}, mode: Container}]"


def _selecting(selector: str) -> str:
    return f"{{nodeSelector: {selector}, {_DEVICES}}}"


_NODES: Final = """
apiVersion: v1
kind: Node
metadata: {name: node-1, labels: {npufleet.io/pool: atom}}
"""
_STATE: Final = """
---
apiVersion: npufleet.io/v1alpha1
kind: NPUNodeState
metadata: {name: node-1}
spec: {revision: "", nodeUID: u}
status:
  inventory:
    bootID: b
    devices:
    - {address: "0000:27:00.0", vendor: "1eff", device: "DEVICE", class: "120000", product: PRODUCT,
       groupViability: Viable}
"""


def _inventory(product: str, device: str) -> str:
    return _NODES + _STATE.replace("PRODUCT", product).replace("DEVICE", device)


def _selector(subject: Subject) -> LabelSelector | None:
    return next((found for _, found in subject.models(LabelSelector, "spec", "nodeSelector")), None)


@rule(
    "NPF-NP-141",
    kinds=_KINDS,
    title="the requirements of a node selector agree with each other",
    severity=Severity.WARNING,
    reason="All requirements must hold: no Node carries two values of one label.",
    good=(_selecting("{matchLabels: {pool: a}, matchExpressions: [{key: pool, operator: In, values: [a, b]}]}"),),
    bad=(
        _selecting("{matchLabels: {pool: a}, matchExpressions: [{key: pool, operator: In, values: [b]}]}"),
        _selecting("{matchLabels: {pool: a}, matchExpressions: [{key: pool, operator: DoesNotExist}]}"),
    ),
)
def at_odds(subject: Subject, _: View) -> Iterator[Fault]:
    selector = _selector(subject)
    for key, one in asked(selector).items() if selector is not None else ():
        if one.impossible:
            message = f'no Node can be selected: the requirements on the label "{key}" exclude each other'
            yield Fault("/spec/nodeSelector", message, "all requirements must hold")


@rule(
    "NPF-NP-142",
    kinds=_KINDS,
    title="the node selector selects a Node",
    severity=Severity.WARNING,
    reason="""A policy without nodes is Ready and does nothing. That may be meant, for nodes that are still to come; a
    typing error in a label looks just the same.""",
    good=(Example(_selecting("{matchLabels: {npufleet.io/pool: atom}}"), _NODES),),
    bad=(
        Example(_selecting("{matchLabels: {npufleet.io/pool: atoms}}"), _NODES),
        Example(_selecting("{matchLabels: {npufleet.io/pol: atom}}"), _NODES),
    ),
)
def selects_no_node(subject: Subject, view: View) -> Iterator[Fault]:
    selector, nodes = _selector(subject), view.nodes()
    if selector is None or nodes is UNKNOWN or not nodes:
        return
    if any(one.impossible for one in asked(selector).values()):
        return
    if not selected(selector, nodes):
        fix = _near_label(selector, nodes) or "nothing happens until a Node carries the labels"
        yield Fault("/spec/nodeSelector", f"selects none of the {len(nodes)} Nodes that there are", fix)


def _near_label(selector: LabelSelector, nodes: Mapping[str, Labels]) -> str:
    """For the first label that no Node has: what is like it."""
    values = nodes.label_values() if isinstance(nodes, Fleet) else label_values(nodes)
    wanted: list[tuple[str, tuple[str, ...]]] = [(key, (value,)) for key, value in selector.match_labels.items()]
    wanted += [
        (found.key, found.values)
        for found in selector.match_expressions
        if found.operator in (SelectorOperator.IN, SelectorOperator.EXISTS)
    ]
    for key, among in wanted:
        if key not in values:
            return f'no Node has the label "{key}"{did_you_mean(key, sorted(values))}'
        if among and not set(among) & values[key]:
            near = did_you_mean(among[0], sorted(values[key]))
            return f'no Node has "{among[0]}" as value of "{key}"{near}'
    return ""


@rule(
    "NPF-NP-143",
    kinds=_KINDS,
    title="every rule of a policy means a device of its nodes",
    severity=Severity.WARNING,
    reason=f"""The rule is looked for in the inventories of the nodes that the policy selects, when all are known and
    they are no more than {_MOST_NODES}. Cards may be still to come; an id that is wrong looks just the same.""",
    good=(Example(_selecting("{}"), _inventory("RBLN-CA25", "1250")),),
    bad=(Example(_selecting("{}"), _inventory("RBLN-CA22", "1220")),),
)
def means_no_device(subject: Subject, view: View) -> Iterator[Fault]:
    selector, nodes = _selector(subject), view.nodes()
    if selector is None or nodes is UNKNOWN:
        return
    chosen = selected(selector, nodes)
    if not 0 < len(chosen) <= _MOST_NODES:
        return
    devices: list[DeviceView] = []
    for node in chosen:
        inventory = view.inventory(node)
        if inventory is UNKNOWN:
            return
        devices += inventory
    for at, found in subject.models(DeviceRule, "spec", "devices", EACH):
        means = effective_match(found)
        if not any(matches(means, device) for device in devices):
            there = _products(devices)
            message = f"none of the {len(devices)} devices of the {len(chosen)} selected nodes is meant"
            yield Fault(f"{at}/match", message, f"there are {', '.join(there)}" if there else "")


def _products(devices: Iterable[DeviceView]) -> list[str]:
    counted: Mapping[str, None] = dict.fromkeys(
        device.product or f"{device.vendor}:{device.device}" for device in devices
    )
    return sorted(counted)[:5]
