"""A real API server takes the definitions, keeps valid objects as they were written, and names the fault of others."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crds.models.kinds import BY_NAME, KINDS
from crds.models.quantity import parse_quantity
from tests.builders.quantities import KNOWN
from tests.builders.samples import FOLDER, REFUSED_BY_SCHEMA, VALID, InvalidSample

MANIFESTS = Path(__file__).parents[2] / "crds" / "manifests"
Kubectl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def api(kubectl: Kubectl) -> Kubectl:
    """kubectl against a server that has the definitions and the namespaces of the samples."""
    kubectl("apply", "--server-side", "--force-conflicts", "--kustomize", str(MANIFESTS))
    kubectl("wait", "--for=condition=Established", "crd", *(kind.crd_name for kind in KINDS), "--timeout=60s")
    kubectl("apply", "--server-side", "-f", str(FOLDER / "namespaces.yaml"))
    return kubectl


def named(sample: dict[str, Any]) -> str:
    return f"{sample['kind']}-{sample['metadata']['name']}"


def coordinates(obj: dict[str, Any]) -> list[str]:
    namespace = obj["metadata"].get("namespace")
    resource = f"{BY_NAME[obj['kind']].crd_name}/{obj['metadata']['name']}"
    return [resource, *([f"--namespace={namespace}"] if namespace else [])]


def test_definitions_are_established_without_complaint(api: Kubectl) -> None:
    for kind in KINDS:
        found = json.loads(api("get", "crd", kind.crd_name, "-o", "json").stdout)
        conditions = {condition["type"]: condition["status"] for condition in found["status"]["conditions"]}
        assert conditions["Established"] == conditions["NamesAccepted"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"
        assert found["status"]["storedVersions"] == [kind.version]


def test_definitions_are_kept_as_they_were_applied(api: Kubectl) -> None:
    for kind in KINDS:
        done = api("diff", "--server-side", "-f", str(MANIFESTS / f"{kind.plural}.yaml"), check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_case_16_rules_cost_far_less_than_is_allowed(api: Kubectl) -> None:
    """With far wider bounds the rules are still within the server's cost limits: the real ones are not near them."""
    for kind in KINDS:
        wide = json.loads(api("get", "crd", kind.crd_name, "-o", "json").stdout)
        del wide["status"]
        wide["metadata"] = {"name": f"wide{kind.plural}.wide.npufleet.io"}
        wide["spec"]["group"] = "wide.npufleet.io"
        names = wide["spec"]["names"]
        for key in ("plural", "singular"):
            names[key] = f"wide{names[key]}"
        names |= {"kind": f"Wide{names['kind']}", "listKind": f"Wide{names['listKind']}"}
        del names["shortNames"]
        widen(wide["spec"]["versions"][0]["schema"])
        api("create", "--dry-run=server", "-f", "-", input=json.dumps(wide))


def widen(node: Any) -> None:
    """Multiply the sizes of lists and maps by two and of strings by four."""
    if isinstance(node, dict):
        for key, factor in (("maxItems", 2), ("maxProperties", 2), ("maxLength", 4)):
            if isinstance(node.get(key), int):
                node[key] *= factor
        for child in node.values():
            widen(child)
    elif isinstance(node, list):
        for child in node:
            widen(child)


@pytest.mark.parametrize("sample", VALID, ids=named)
def test_a_valid_sample_is_read_back_as_it_was_written(api: Kubectl, sample: dict[str, Any]) -> None:
    api("delete", *coordinates(sample), "--ignore-not-found")
    api("create", "--validate=strict", "-f", "-", input=json.dumps(sample))
    try:
        found = json.loads(api("get", *coordinates(sample), "-o", "json").stdout)
        assert found["spec"] == sample["spec"]
        assert "status" not in found
        model = BY_NAME[sample["kind"]].model.strict(found)
        assert model.to_object()["spec"] == sample["spec"]
        again = api("diff", "--server-side", "-f", "-", input=json.dumps(sample | {"status": {}}), check=False)
        assert again.returncode == 0, again.stdout + again.stderr
    finally:
        api("delete", *coordinates(sample))


@pytest.mark.parametrize("sample", [found for found in VALID if "status" in found], ids=named)
def test_a_status_is_read_back_as_it_was_written(api: Kubectl, sample: dict[str, Any]) -> None:
    api("delete", *coordinates(sample), "--ignore-not-found")
    api("create", "-f", "-", input=json.dumps(sample))
    try:
        api("replace", "--subresource=status", "-f", "-", input=json.dumps(sample))
        found = json.loads(api("get", *coordinates(sample), "-o", "json").stdout)
        assert found["status"] == sample["status"]
        header, row = api("get", *coordinates(sample)).stdout.splitlines()
        assert header.split() == ["NAME", "READY", "REASON", "AVAILABLE", "UPDATED", "REVISION", "AGE"]
        assert row.split()[1:4] == ["False", "DevicesBlocked", "Unknown"]
        assert sample["spec"]["revision"] in row.split()
    finally:
        api("delete", *coordinates(sample))


def test_all_samples_are_taken_in_one_server_side_dry_run(api: Kubectl) -> None:
    done = api("apply", "--server-side", "--dry-run=server", "--validate=strict", "--kustomize", str(FOLDER))
    assert len(done.stdout.splitlines()) >= len(VALID) - 2
    for sample in VALID:
        if sample["kind"] != "NPUNodeState":
            assert f"/{sample['metadata']['name']} serverside-applied (server dry run)" in done.stdout


@pytest.mark.parametrize("sample", REFUSED_BY_SCHEMA, ids=lambda sample: sample.name)
def test_an_invalid_sample_is_refused_by_a_message_that_names_the_field(api: Kubectl, sample: InvalidSample) -> None:
    done = api("create", "--dry-run=server", "--validate=strict", "-f", str(sample.path), check=False)
    assert done.returncode != 0, f"accepted: {done.stdout}"
    # Not only found somewhere: the field is the whole path of the fault.
    assert (
        f"* {sample.field}: " in done.stderr
        or f": {sample.field}: " in done.stderr
        or f'"{sample.field}"' in done.stderr
    )
    assert sample.message in done.stderr


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        ({"conditions": [{"type": "Ready"}]}, "status.conditions[0].reason: Required value"),
        (
            {"conditions": [{"lastTransitionTime": "2026-11-31T12:00:00Z"}]},
            "status.conditions[0].lastTransitionTime: Invalid value",
        ),
        ({"conditions": [{"reason": ""}]}, "status.conditions[0].reason: Invalid value"),
        ({"conditions": [{}, {}]}, "status.conditions[1]: Duplicate value"),
        ({"nodes": {"matched": -1, "updated": 0, "ready": 0, "blocked": 0}}, "status.nodes.matched: Invalid value"),
        (
            {"blockers": [{"node": "a", "device": "23:00", "reason": "InUse", "message": ""}]},
            "status.blockers[0].device",
        ),
    ],
)
def test_a_faulty_status_is_refused(api: Kubectl, status: dict[str, Any], complaint: str) -> None:
    sample = next(found for found in VALID if found["kind"] == "NPUNodePolicy")
    api("apply", "--server-side", "-f", "-", input=json.dumps(sample))
    whole = {
        "type": "Ready",
        "status": "True",
        "reason": "AllDevicesReady",
        "message": "",
        "lastTransitionTime": "2026-11-30T12:00:00Z",
    }
    if complaint.endswith("Required value"):
        del whole["reason"]
    if "conditions" in status:
        status = {"conditions": [whole | part for part in status["conditions"]]}
    patch = json.dumps({"status": status})
    done = api("patch", *coordinates(sample), "--subresource=status", "--type=merge", f"--patch={patch}", check=False)
    api("delete", *coordinates(sample))
    assert done.returncode != 0
    assert complaint in done.stderr


def test_short_names_and_the_category_list_objects(api: Kubectl) -> None:
    samples = [found for found in VALID if found["metadata"]["name"] == "sample-minimal"]
    api("apply", "--server-side", "-f", "-", input="\n---\n".join(json.dumps(sample) for sample in samples))
    try:
        listed = api("get", "npu", "--all-namespaces", "-o", "name").stdout
        for sample in samples:
            kind = BY_NAME[sample["kind"]]
            name = f"{kind.singular}.{kind.group}/sample-minimal"
            assert name in listed
            assert name in api("get", kind.short_name, "--all-namespaces", "-o", "name").stdout
    finally:
        for sample in samples:
            api("delete", *coordinates(sample))


def test_columns_show_what_the_status_says(api: Kubectl) -> None:
    sample = next(found for found in VALID if found["kind"] == "NPUNodePolicy")
    status = {
        "nodes": {"matched": 3, "updated": 2, "ready": 1, "blocked": 0},
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "RollingOut",
                "message": "",
                "lastTransitionTime": "2026-11-30T12:00:00Z",
            }
        ],
    }
    api("apply", "--server-side", "-f", "-", input=json.dumps(sample))
    try:
        api(
            "patch", *coordinates(sample), "--subresource=status", "--type=merge",
            f"--patch={json.dumps({'status': status})}",
        )  # fmt: skip
        header, row = api("get", *coordinates(sample)).stdout.splitlines()
        assert header.split() == ["NAME", "MATCHED", "READY", "UPDATED", "REASON", "AGE"]
        assert row.split()[1:5] == ["3", "1", "2", "RollingOut"]
    finally:
        api("delete", *coordinates(sample))


def test_kubectl_explain_shows_meaning_and_effective_value(api: Kubectl) -> None:
    told = " ".join(api("explain", "npunodepolicies.spec.priority").stdout.split())
    assert "Higher wins; ties go to the name that sorts first." in told
    assert "Absent: `100`." in told


def test_quantities_are_the_amounts_that_the_api_server_counts(api: Kubectl) -> None:
    """The server writes quantities back in one canonical spelling; both spellings must be one amount to us."""
    devices = [
        {"name": f"device-{index}", "capacity": {f"q{index}": {"value": text}}} for index, (text, _) in enumerate(KNOWN)
    ]
    resource_slice = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "quantities"},
        "spec": {
            "driver": "quantities.npufleet.io",
            "allNodes": True,
            "pool": {"name": "quantities", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }
    done = api("create", "--dry-run=server", "-f", "-", "-o", "json", input=json.dumps(resource_slice))
    counted = {
        name: parse_quantity(capacity["value"])
        for device in json.loads(done.stdout)["spec"]["devices"]
        for name, capacity in device["capacity"].items()
    }
    assert counted == {f"q{index}": amount for index, (_, amount) in enumerate(KNOWN)}
