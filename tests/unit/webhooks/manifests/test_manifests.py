"""What is installed of the webhook: no caBundle in Git, as few rights as it works with, nothing asked too much."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.cluster.kubectl import find_kubectl
from webhooks.certificates.configurations import TARGETS
from webhooks.certificates.rotation import SECRET
from webhooks.server.app import PATH
from webhooks.server.limits import Limits
from webhooks.server.options import COMPONENT, REVIEW_PORT, SERVICE_HOST
from webhooks.server.review import JUDGED

ROOT = Path(__file__).parents[4]
COMPONENTS = ("certificates-built-in", "certificates-cert-manager")
NAMESPACE = "npufleet-system"


def rendered(directory: Path, component: str | None = None) -> list[dict[str, Any]]:
    """What `kubectl apply -k` sends for the base, with the component."""
    up = os.path.relpath(ROOT, directory)
    content: dict[str, Any] = {"resources": [f"{up}/kustomize/base"]}
    if component is not None:
        content["components"] = [f"{up}/kustomize/components/{component}"]
    (directory / "kustomization.yaml").write_text(json.dumps(content))
    done = subprocess.run(
        [str(find_kubectl()), "kustomize", str(directory)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(params=COMPONENTS)
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> list[dict[str, Any]]:
    return rendered(tmp_path, request.param)


def only(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name)
    return found


def keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values())) if value else set()
    return set().union(*map(keys, value)) if isinstance(value, list) and value else set()


def test_case_12_no_manifest_has_a_ca_bundle_or_asks_to_be_replaced(installed: list[dict[str, Any]]) -> None:
    assert "caBundle" not in keys(installed)
    assert "Replace=true" not in json.dumps(installed)


def test_case_12_no_file_in_git_sets_a_ca_bundle() -> None:
    files = [path for top in ("kustomize", "argocd") for path in (ROOT / top).rglob("*.y*ml")]
    assert len(files) > 50
    for path in files:
        text = path.read_text()
        assert not re.search(r"^\s*caBundle\s*:", text, re.M), path
        assert "Replace=true" not in text, path


def test_base_alone_asks_no_webhook(tmp_path: Path) -> None:
    kinds = {one["kind"] for one in rendered(tmp_path)}
    assert not {"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"} & kinds


def test_every_configuration_is_one_whose_bundle_is_kept(installed: list[dict[str, Any]]) -> None:
    kept = {(target.resource.kind, target.name) for target in TARGETS}
    found = {
        (one["kind"], one["metadata"]["name"]) for one in installed if one["kind"].endswith("WebhookConfiguration")
    }
    assert found
    assert found <= kept


def test_only_new_specs_fail_closed_and_only_of_the_kinds_that_people_write(installed: list[dict[str, Any]]) -> None:
    entries = only(installed, "ValidatingWebhookConfiguration", "npufleet.io")["webhooks"]
    for entry in entries:
        assert entry["admissionReviewVersions"] == ["v1"]
        assert entry["sideEffects"] == "None"
        assert entry["matchPolicy"] == "Equivalent"
        assert entry["timeoutSeconds"] <= 5
        assert Limits().seconds < 5
        for rule in entry["rules"]:
            assert rule["apiGroups"] == ["npufleet.io"]
            assert rule["resources"] == ["npunodestates"] or len(rule["resources"]) == len(JUDGED)
            assert not any("*" in name or "/" in name for name in rule["resources"])
    closed = [entry for entry in entries if entry["failurePolicy"] == "Fail"]
    assert [rule["operations"] for entry in closed for rule in entry["rules"]] == [["CREATE", "UPDATE"]]
    assert all(rule["resources"] != ["npunodestates"] for entry in closed for rule in entry["rules"])
    assert all(entry["matchConditions"] for entry in entries)
    deletes = [entry for entry in entries for rule in entry["rules"] if "DELETE" in rule["operations"]]
    assert all(entry["failurePolicy"] == "Ignore" for entry in deletes)


def test_the_name_that_is_asked_for_is_that_of_the_service(installed: list[dict[str, Any]]) -> None:
    service = only(installed, "Service", COMPONENT)
    assert f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc" == SERVICE_HOST
    assert service["spec"]["ports"][0]["targetPort"] == REVIEW_PORT
    for entry in only(installed, "ValidatingWebhookConfiguration", "npufleet.io")["webhooks"]:
        asked = entry["clientConfig"]["service"]
        assert (asked["name"], asked["namespace"], asked["path"]) == (COMPONENT, NAMESPACE, PATH)
    budget = only(installed, "PodDisruptionBudget", COMPONENT)
    assert budget["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]


def rules_of(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every right of the webhook's account."""
    found = []
    for binding in (one for one in objects if one["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        if any(subject["name"] == COMPONENT for subject in binding["subjects"]):
            found += only(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])["rules"]
    return found


def test_webhook_writes_nothing_but_its_certificates(installed: list[dict[str, Any]]) -> None:
    for rule in rules_of(installed):
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        if set(rule["verbs"]) - {"get", "list", "watch"}:
            assert rule["resourceNames"] in ([SECRET], ["npufleet.io"])
        if "secrets" in rule["resources"]:
            assert (rule["resourceNames"], rule["verbs"]) == ([SECRET], ["get", "update"])


def test_webhook_may_touch_no_configuration_but_those_that_are_installed(installed: list[dict[str, Any]]) -> None:
    kinds = {"validatingwebhookconfigurations": "ValidatingWebhookConfiguration"}
    there = {(one["kind"], one["metadata"]["name"]) for one in installed}
    for rule in rules_of(installed):
        if "admissionregistration.k8s.io" in rule["apiGroups"]:
            assert {(kinds[kind], name) for kind in rule["resources"] for name in rule["resourceNames"]} <= there


def test_rights_to_change_trust_come_with_the_component_that_needs_them(tmp_path: Path) -> None:
    verbs = {
        component: {verb for rule in rules_of(rendered(tmp_path, component)) for verb in rule["verbs"]}
        for component in (None, *COMPONENTS)
    }
    assert verbs[None] == verbs["certificates-cert-manager"] == {"get", "list", "watch"}
    assert verbs["certificates-built-in"] == {"get", "list", "watch", "patch", "update"}


def test_built_in_secret_is_empty_in_git(tmp_path: Path) -> None:
    secret = only(rendered(tmp_path, "certificates-built-in"), "Secret", SECRET)
    assert not {"data", "stringData"} & set(secret)
    assert secret["type"] == "Opaque", "a TLS Secret may not be empty"


def test_cert_manager_signs_for_the_service_and_injects_where_it_is_asked(tmp_path: Path) -> None:
    objects = rendered(tmp_path, "certificates-cert-manager")
    certificate = only(objects, "Certificate", "npufleet-webhook")
    authority = only(objects, "Certificate", "npufleet-webhook-ca")
    assert certificate["spec"]["secretName"] == SECRET
    assert certificate["spec"]["dnsNames"] == [SERVICE_HOST]
    assert authority["spec"]["isCA"] is True
    issuer = only(objects, "Issuer", certificate["spec"]["issuerRef"]["name"])
    assert issuer["spec"]["ca"]["secretName"] == authority["spec"]["secretName"]
    assert only(objects, "Issuer", authority["spec"]["issuerRef"]["name"])["spec"] == {"selfSigned": {}}
    for one in (certificate, authority):
        assert hours(one["spec"]["renewBefore"]) < hours(one["spec"]["duration"])
    assert hours(authority["spec"]["renewBefore"]) >= 2 * hours(certificate["spec"]["duration"])
    configuration = only(objects, "ValidatingWebhookConfiguration", "npufleet.io")
    assert configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == (
        f"{certificate['metadata']['namespace']}/{certificate['metadata']['name']}"
    )


def hours(duration: str) -> int:
    found = re.fullmatch(r"(\d+)h0m0s", duration)
    assert found is not None
    return int(found.group(1))
