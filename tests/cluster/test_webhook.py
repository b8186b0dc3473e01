"""The webhook as a real process, asked by a real API server by URL: what people see, and what does not depend on it."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.cluster.access.identities import service_account_kubeconfig
from cli.cluster.run.control_plane import ControlPlane
from crds.break_glass import GROUP, REASON_ANNOTATION, UNTIL_ANNOTATION
from crds.models.kinds import BY_NAME
from tests.builders.live_webhook import BAD, GOOD, Webhook, live_webhook, point_at, policy
from tests.builders.node_policy_cluster import ControllerProcess, LiveFleet
from tests.builders.only_git_writes import node_state, writers
from tests.builders.reviews import ALL_KNOWN
from tests.builders.samples import VALID
from tests.builders.waiting import eventually
from tests.builders.webhook_process import (
    CONFIGURATION,
    Kubectl,
    in_force,
    is_asked,
)
from webhooks.rules import RULES, Layer, Operation, Rule, Severity, Subject

POOL = {"webhook": "pool"}


@pytest.fixture(scope="module")
def webhook(
    installed: None, control_plane: ControlPlane, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Webhook]:
    with live_webhook(control_plane, kubectl, tmp_path_factory.mktemp("webhook")) as found:
        yield found


def names(kubectl: Kubectl) -> list[str]:
    return kubectl("get", "npunodepolicies", "-o", "name").stdout.split()


def bad_examples() -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects that a rule of the webhook refuses whatever else is in the cluster, each of another name."""
    for rule in RULES.values():
        if rule.layer is not Layer.WEBHOOK or rule.severity is not Severity.ERROR:
            continue
        for number, example in enumerate(rule.bad):
            alone = not (example.others or example.old or example.groups)
            if not alone or example.operation not in (None, Operation.CREATE):
                continue
            obj = example_object(rule, example.text, f"{rule.id.lower()}-{number}")
            found = rule.check(Subject.of(BY_NAME[obj["kind"]], obj), ALL_KNOWN(now=datetime.now(UTC)))
            if any(one.severity is Severity.ERROR for one in found):
                yield rule.id, obj


def example_object(rule: Rule, text: str, name: str) -> dict[str, Any]:
    """The object of an example: where it is a spec only, in the least object around it."""
    content = yaml.safe_load(text)
    obj = dict(content)
    if "apiVersion" not in content:
        spec = {"nodeSelector": {}, **content} if rule.kinds[0] == "NPUNodePolicy" else content
        obj = {"apiVersion": "npufleet.io/v1alpha1", "kind": rule.kinds[0], "metadata": {}, "spec": spec}
    obj["metadata"] = obj["metadata"] | {"name": name}
    if obj["kind"] == "VNPUQuota":
        obj["metadata"]["namespace"] = "default"
    return obj


def test_bad_examples_of_all_rules_are_refused_by_kubectl_apply_in_the_rules_words(webhook: Webhook) -> None:
    examples = list(bad_examples())
    assert len(examples) > 30
    done = webhook.apply(*(obj for _, obj in examples), check=False)
    assert done.returncode == 1
    # kubectl goes through the list in its order, and tells one refusal after the other.
    said = done.stderr.split("Error from server (Invalid): ")[1:]
    assert len(said) == len(examples), done.stderr
    for (rule, obj), part in zip(examples, said, strict=True):
        assert f"[{rule}]" in part, f"{obj['metadata']['name']}: {part}"
        assert "denied the request: " in part
    assert names(webhook.kubectl) == []


def test_good_samples_are_never_refused(webhook: Webhook) -> None:
    samples = [obj for obj in VALID if obj["kind"] != "NPUNodeState"]
    for obj in samples:
        if obj["kind"] == "VNPUQuota":
            obj["metadata"] |= {"namespace": "default"}
    done = webhook.apply(*samples, options=("--dry-run=server",))
    assert done.stdout.count("server dry run") == len(samples)


def test_five_faults_of_one_layer_are_shown_at_once(webhook: Webhook) -> None:
    wrong = ("RBLN-CA2", "RBLN-CA222", "Ascend-31OP", "NVIDIA-L4O", "none-such")
    done = webhook.apply(policy("five", products=wrong), check=False)
    assert done.returncode == 1
    lines = told(done.stderr)
    assert [line.split(": ")[0] for line in lines] == [f"spec.devices[0].match.products[{n}]" for n in range(5)]
    assert all(f'unknown product "{name}"' in line for name, line in zip(wrong, lines, strict=True))
    assert all(line.endswith("[NPF-NP-101]") for line in lines)
    # Argo CD shows the message (kubectl too, for several objects), kubectl the causes of one: both name them all.
    both = webhook.apply(policy("five", products=wrong), policy("six", products=wrong), check=False)
    for message in both.stderr.split("Error from server (Invalid): ")[1:]:
        first, *rest = message.splitlines()
        assert first.endswith('admission webhook "objects.npufleet.io" denied the request: 5 violations:')
        assert rest[:5] == lines


def told(stderr: str) -> list[str]:
    """The faults that kubectl lists, as it lists several."""
    return [line.removeprefix("* ") for line in stderr.splitlines() if line.startswith("* ")]


def test_case_10_dry_run_has_the_same_verdict_and_leaves_no_trace(webhook: Webhook) -> None:
    kubectl = webhook.kubectl
    kept = policy("kept")
    webhook.apply(kept)
    before = kubectl("get", "npunodepolicies", "kept", "-o", "json", "--show-managed-fields").stdout
    ways = ((), ("--dry-run=server",), ("--server-side",), ("--server-side", "--dry-run=server"))
    refused = {}
    for options in (*ways[1:2], *ways[3:], *ways[:1], *ways[2:3]):
        done = webhook.apply(policy("traceless", products=("RBLN-CA2", "none")), check=False, options=options)
        assert done.returncode == 1
        refused[options] = told(done.stderr)
        assert names(kubectl) == ["npunodepolicy.npufleet.io/kept"]
    assert len({tuple(lines) for lines in refused.values()}) == 1
    assert len(refused[()]) == 2
    for options in (ways[1], ways[3]):
        webhook.apply(policy("traceless"), options=options)
        changed = policy("kept", products=("RBLN-CA22",))
        webhook.apply(changed, options=(*options, *(("--force-conflicts",) if "--server-side" in options else ())))
        assert names(kubectl) == ["npunodepolicy.npufleet.io/kept"]
    assert kubectl("get", "npunodepolicies", "kept", "-o", "json", "--show-managed-fields").stdout == before
    kubectl("delete", "npunodepolicies", "kept")


def test_object_that_became_bad_can_still_be_labelled_changed_elsewhere_and_deleted(webhook: Webhook) -> None:
    """A stricter version of the rules meets objects that are there already."""
    kubectl = webhook.kubectl
    was = json.loads(kubectl("get", CONFIGURATION, "-o", "json").stdout)
    kubectl("delete", CONFIGURATION)
    eventually(lambda: not in_force(kubectl, BAD, "NPF-NP-101"), what="the webhook is not asked")
    webhook.apply(policy("old", products=("RBLN-CA2",)))
    was["metadata"] = {"name": was["metadata"]["name"]}
    for entry in was["webhooks"]:
        entry["clientConfig"].pop("caBundle")
    kubectl("create", "-f", "-", input=json.dumps(was))
    webhook.works()
    kubectl("label", "npunodepolicy", "old", "a=b")
    done = kubectl("patch", "npunodepolicy", "old", "--type=merge", "-p", '{"spec":{"priority":7}}')
    assert "Warning: " in done.stderr
    assert "NPF-NP-101" in done.stderr
    patch = '[{"op":"add","path":"/spec/devices/0/match/products/-","value":"none-such"}]'
    more = kubectl("patch", "npunodepolicy", "old", "--type=json", "-p", patch, check=False)
    assert more.returncode == 1
    assert 'unknown product "none-such"' in more.stderr
    kubectl("delete", "npunodepolicy", "old")


def test_verdict_is_in_the_audit_log_with_the_version_of_the_rules(
    webhook: Webhook, control_plane: ControlPlane
) -> None:
    webhook.apply(policy("audited", products=("RBLN-CA2",)), check=False)
    log = control_plane.audit_log
    if log is None:
        return  # a cluster that was given has its log elsewhere

    def annotations() -> dict[str, str]:
        for line in reversed(log.read_text().splitlines()):
            event = json.loads(line)
            if "audited" in event.get("requestURI", "") or event.get("objectRef", {}).get("name") == "audited":
                found = event.get("annotations") or {}
                if "objects.npufleet.io/rules-version" in found:
                    return dict(found)
        return {}

    eventually(annotations, what="an annotated event")
    found = annotations()
    assert re.fullmatch(r"[0-9a-f]{12}", found["objects.npufleet.io/rules-version"])
    assert "NPF-NP-101" in found["objects.npufleet.io/rules"].split(",")  # others look at the Nodes that there are
    assert found["objects.npufleet.io/decision-time"].endswith("ms")


def test_webhook_down_stops_new_specs_and_nothing_else(
    webhook: Webhook, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Reads, status, labels, finalizers, deletion and the controllers go on; no spec is let in unjudged."""
    kubectl = webhook.kubectl
    fleet = LiveFleet(control_plane.api())
    kubeconfig = service_account_kubeconfig(
        control_plane, "npufleet-system", "npufleet-node-policy", tmp_path / "kubeconfig"
    )
    with ExitStack() as stack:
        stack.callback(fleet.clear)
        controller = ControllerProcess(kubeconfig, tmp_path / "controller.log")
        stack.callback(controller.kill)
        fleet.add_node("webhook-node", 1, labels=POOL)
        kept = policy("kept")
        kept["spec"]["nodeSelector"] = {"matchLabels": POOL}
        fleet.apply(kept)
        fleet.ready("kept")
        webhook.apply(policy("doomed"))
        webhook.process.kill()
        stack.callback(webhook.works)
        stack.callback(webhook.process.start)
        for obj in (policy("new"), policy("new", products=("RBLN-CA2",))):
            done = webhook.apply(obj, check=False)
            assert done.returncode == 1
            assert 'failed calling webhook "objects.npufleet.io"' in done.stderr
        assert kubectl(
            "patch", "npunodepolicy", "kept", "--type=merge", "-p", '{"spec":{"priority":7}}', check=False
        ).returncode
        assert "npunodepolicy.npufleet.io/new" not in names(kubectl)
        kubectl("label", "npunodepolicy", "kept", "while=down")
        kubectl("annotate", "npunodepolicy", "kept", "while=down")
        status = '{"status":{"devices":{"matched":3,"ready":3}}}'
        kubectl("patch", "npunodepolicy", "kept", "--subresource=status", "--type=merge", "-p", status)
        kubectl("delete", "npunodepolicy", "doomed")
        fleet.add_node("webhook-late", 1, labels=POOL)
        fleet.until(lambda: fleet.orders("webhook-late"), what="orders for a node that came meanwhile")
        fleet.ready("kept")
        kubectl("create", "configmap", "bystander", "--namespace=default")
        kubectl("delete", "configmap", "bystander", "--namespace=default")


def test_case_14_deletion_and_finalizers_do_not_wait_for_a_webhook_that_is_down(webhook: Webhook) -> None:
    kubectl = webhook.kubectl
    webhook.apply(policy("final", finalizers=["example.com/keeps"]))
    webhook.process.kill()
    try:
        kubectl("delete", "npunodepolicy", "final", "--wait=false")
        assert names(kubectl) == ["npunodepolicy.npufleet.io/final"]
        kubectl("patch", "npunodepolicy", "final", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
        assert names(kubectl) == []
    finally:
        webhook.process.start()
        webhook.works()


def test_deletion_by_break_glass_after_its_end_is_refused_and_does_not_wait_for_a_webhook_that_is_down(
    webhook: Webhook,
) -> None:
    kubectl = webhook.kubectl
    until = datetime.now(UTC) + timedelta(seconds=20)
    said = {
        REASON_ANNOTATION: "the host has to be emptied",
        UNTIL_ANNOTATION: until.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
    webhook.apply(policy("glass", annotations=said))
    orders = node_state("glass")
    orders["metadata"]["annotations"] = said
    kubectl("create", "-f", "-", input=json.dumps(orders))
    member = ("--as=someone", "--as-group=system:masters", f"--as-group={GROUP}")
    eventually(lambda: datetime.now(UTC) > until + timedelta(seconds=1), what="its end")
    revision = ("--type=merge", "-p", '{"spec":{"revision":"1"}}')
    for late in (
        ("delete", "npunodepolicy", "glass"),
        ("label", "npunodepolicy", "glass", "late=yes"),
        ("patch", "npunodestate", "glass", *revision),
        ("delete", "npunodestate", "glass"),
    ):
        refused = kubectl(*late, *member, check=False)
        assert refused.returncode == 1, late
        assert "[NPF-ALL-902]" in refused.stderr
    kubectl("annotate", "npunodestate", "glass", f"{REASON_ANNOTATION}-", f"{UNTIL_ANNOTATION}-", *member)
    kubectl("delete", "npunodestate", "glass")
    writers(kubectl, "someone")
    try:
        eventually(lambda: not kubectl("label", "npunodepolicy", "glass", "by=git", *member, check=False).returncode)
    finally:
        writers(kubectl, "")
    webhook.process.kill()
    try:
        kubectl("delete", "npunodepolicy", "glass", *member)
    finally:
        webhook.process.start()
        webhook.works()


def test_case_22_dry_run_of_a_good_object_tells_what_readiness_cannot(webhook: Webhook) -> None:
    """A process that is ready may be out of the API server's reach: the gate of an installation asks the API server."""
    kubectl = webhook.kubectl
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nowhere = f"https://127.0.0.1:{taken.getsockname()[1]}/validate"
        point_at(kubectl, nowhere)
        eventually(lambda: not is_asked(kubectl, GOOD), what="the gate is shut")
        assert webhook.process.is_ready()
        said = kubectl("create", "--dry-run=server", "-f", "-", input=GOOD, check=False).stderr
        assert "failed calling webhook" in said
        assert nowhere.removesuffix("/validate") in said
    point_at(kubectl, webhook.process.url)
    webhook.works()
