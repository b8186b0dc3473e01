"""Certificates and replicas that change while a real API server asks: not one review fails."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.cluster.run.control_plane import ControlPlane
from runtime.certificates import Authority, certificates_in, new_authority, new_leaf, trusts
from tests.builders.live_webhook import GOOD, IN_SYSTEM, SECRET, Webhook, live_webhook, load, point_at
from tests.builders.waiting import eventually
from tests.builders.webhook_process import (
    CONFIGURATION,
    SERVICE_HOST,
    Kubectl,
    WebhookProcess,
    is_asked,
    write_installation,
)

REVIEWS_OF_THE_SWAP = 2400
SHIFTED = Path(__file__).parent / "faults" / "shifted_clock"


@pytest.fixture(scope="module")
def webhook(
    installed: None, control_plane: ControlPlane, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Webhook]:
    with live_webhook(control_plane, kubectl, tmp_path_factory.mktemp("webhook")) as found:
        yield found


def test_built_in_certificates_are_renewed_by_the_identity_of_the_webhook_alone(webhook: Webhook) -> None:
    kubectl = webhook.kubectl
    found = json.loads(kubectl("get", CONFIGURATION, "-o", "json", "--show-managed-fields").stdout)
    bundles = {entry["clientConfig"]["caBundle"] for entry in found["webhooks"]}
    assert len(bundles) == 1
    assert owners_of_bundles(kubectl) == set()
    chain = certificates_in(webhook.process.served())
    assert trusts(certificates_in(base64.b64decode(bundles.pop())), chain, datetime.now(UTC))
    told = re.search(r"^npufleet_webhook_cert_expiry_timestamp_seconds (\S+)$", webhook.process.get("/metrics"), re.M)
    assert told is not None
    assert float(told.group(1)) == pytest.approx(chain[0].not_valid_after_utc.timestamp())


def owners_of_bundles(kubectl: Kubectl) -> set[str]:
    return owners(kubectl("get", CONFIGURATION, "-o", "json", "--show-managed-fields").stdout)


def owners(configuration: str) -> set[str]:
    managers = json.loads(configuration)["metadata"]["managedFields"]
    assert managers, "Git owns what it has applied"
    return {entry["manager"] for entry in managers if "caBundle" in json.dumps(entry["fieldsV1"])}


def test_entry_that_git_renames_goes_though_its_bundle_was_set_by_a_replica(webhook: Webhook, tmp_path: Path) -> None:
    """By a replica of this version, or of one that stayed the owner of what it had set."""
    kubectl = webhook.kubectl
    found = json.loads(kubectl("get", CONFIGURATION, "-o", "json").stdout)
    owning = {
        "apiVersion": found["apiVersion"],
        "kind": found["kind"],
        "metadata": {"name": found["metadata"]["name"]},
        "webhooks": [
            {"name": entry["name"], "clientConfig": {"caBundle": entry["clientConfig"]["caBundle"]}}
            for entry in found["webhooks"]
        ],
    }
    as_before = ("--server-side", "--field-manager=npufleet-webhook")
    taken = kubectl("apply", *as_before, "-f", "-", "-o", "json", "--show-managed-fields", input=json.dumps(owning))
    assert owners(taken.stdout) == {"npufleet-webhook"}
    eventually(lambda: owners_of_bundles(kubectl) == set(), seconds=60, what="the replica owns nothing any more")
    was = write_installation(tmp_path, webhook.process.url)
    renamed = json.loads((was / "kustomization.yaml").read_text())
    change = [{"op": "replace", "path": "/webhooks/1/name", "value": "another.npufleet.io"}]
    renamed["patches"].append({"target": {"kind": "ValidatingWebhookConfiguration"}, "patch": json.dumps(change)})
    (was / "kustomization.yaml").write_text(json.dumps(renamed))
    kubectl("apply", "--server-side", "--kustomize", str(was))
    entries = json.loads(kubectl("get", CONFIGURATION, "-o", "json").stdout)["webhooks"]
    assert [entry["name"] for entry in entries] == ["objects.npufleet.io", "another.npufleet.io"]
    webhook.works()
    kubectl("apply", "--server-side", "--kustomize", str(write_installation(tmp_path, webhook.process.url)))
    entries = json.loads(kubectl("get", CONFIGURATION, "-o", "json").stdout)["webhooks"]
    assert sorted(entry["name"] for entry in entries) == ["break-glass.npufleet.io", "objects.npufleet.io"]
    webhook.works()


def test_emptied_secret_is_made_anew_under_load_without_a_failed_review(
    webhook: Webhook, control_plane: ControlPlane
) -> None:
    served = webhook.process.served()

    def empty() -> None:
        webhook.kubectl("patch", SECRET, IN_SYSTEM, "--type=json", "-p", '[{"op":"remove","path":"/data"}]')

    def is_another() -> None:
        eventually(lambda: webhook.process.served() != served, seconds=60, what="a new certificate")

    failed, asked = asyncio.run(load(control_plane, 200, [empty, is_another]))
    assert failed == []
    print(f"{asked} reviews while the certificates of the Secret were lost and made anew")
    webhook.works()


def test_deleted_secret_is_told_and_what_is_served_goes_on(webhook: Webhook, tmp_path: Path) -> None:
    webhook.kubectl("delete", SECRET, IN_SYSTEM)
    eventually(lambda: "is missing: apply" in webhook.process.notes().get("certificate-source", ""), seconds=60)
    assert webhook.process.is_ready()
    assert is_asked(webhook.kubectl, GOOD)
    again = str(write_installation(tmp_path, webhook.process.url))
    webhook.kubectl("apply", "--server-side", "--kustomize", again)
    eventually(lambda: not webhook.process.notes(), seconds=60, what="the Secret is filled again")
    webhook.works()


def test_replica_with_a_wrong_clock_is_not_ready_and_leaves_the_certificates_alone(
    webhook: Webhook, control_plane: ControlPlane, tmp_path: Path
) -> None:
    before = webhook.kubectl("get", SECRET, IN_SYSTEM, "-o", "jsonpath={.data}").stdout
    shift = tmp_path / "shift"
    shift.write_text(str(31 * 86400))
    wrong = WebhookProcess(control_plane, tmp_path)
    wrong.environment = {"PYTHONPATH": str(SHIFTED), "NPUFLEET_TEST_CLOCK_SHIFT": str(shift)}
    try:
        wrong.start()
        eventually(lambda: "ahead of the API server's: set it right" in wrong.readiness().get("clock", ""), seconds=60)
        eventually(
            lambda: wrong.readiness().keys() == {"clock", "certificate"}, seconds=60, what="only its clock is bad"
        )
        assert webhook.kubectl("get", SECRET, IN_SYSTEM, "-o", "jsonpath={.data}").stdout == before
        shift.write_text("0")
        eventually(wrong.is_ready, seconds=60, what="it is ready once its clock is right")
    finally:
        wrong.kill()
    webhook.works()


def test_case_13_certificate_files_are_swapped_under_load_without_a_failed_review(
    webhook: Webhook, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """First another certificate of the same authority, then another authority; at last one that nobody trusts."""
    kubectl = webhook.kubectl
    files = tmp_path / "tls"
    files.mkdir()
    first, second, foreign = (authority(name) for name in ("first", "second", "foreign"))
    write_pair(files, first)
    process = WebhookProcess(control_plane, tmp_path, "--certificates", str(files))
    webhook.process.stop()  # it would set its own caBundle again
    with ExitStack() as stack:
        stack.callback(webhook.works)
        stack.callback(webhook.process.start)
        stack.callback(lambda: point_at(kubectl, webhook.process.url))
        stack.callback(process.stop)
        process.start()
        trust(kubectl, process.url, first)
        alone = Webhook(process, kubectl)
        alone.works()
        served = [process.served()]

        def is_another() -> bool:
            now = process.served()
            if now != served[-1]:
                served.append(now)
                return True
            return False

        failed, asked = asyncio.run(
            load(
                control_plane,
                REVIEWS_OF_THE_SWAP,
                [
                    lambda: write_pair(files, first),
                    lambda: eventually(is_another, seconds=60, what="the next certificate is served"),
                    lambda: trust(kubectl, process.url, first, second),
                    lambda: write_pair(files, second),
                    lambda: eventually(is_another, seconds=60, what="a certificate of the second authority"),
                    lambda: trust(kubectl, process.url, second),
                ],
            )
        )
        print(f"{asked} reviews, {len(failed)} failed, {len(served)} certificates were served")
        assert failed == []
        assert asked >= 2000
        assert len(served) == 3
        alone.works()
        write_pair(files, foreign)
        eventually(lambda: "does not trust" in process.readiness().get("certificate", ""), seconds=60)
        # An open connection stays good until its next answer has ended it; there are as many as there were callers.
        eventually(lambda: not is_asked(kubectl, GOOD), seconds=180, what="the API server does not believe it")
        write_pair(files, second)
        alone.works()
        (files / "tls.key").write_text("half of a ke")
        assert is_asked(kubectl, GOOD), "what was served goes on"


def authority(name: str) -> Authority:
    return new_authority(name, now=datetime.now(UTC), lifetime=timedelta(days=30))


def write_pair(directory: Path, signer: Authority) -> None:
    """A new certificate, one file after the other, as somebody copies them."""
    pair = new_leaf(
        signer, "server", hosts=["127.0.0.1", SERVICE_HOST], now=datetime.now(UTC), lifetime=timedelta(days=1)
    )
    (directory / "tls.crt").write_bytes(pair.certificate)
    (directory / "tls.key").write_bytes(pair.key)


def trust(kubectl: Kubectl, url: str, *authorities: Authority) -> None:
    """As an injector of an issuer does it."""
    bundle = base64.b64encode(b"".join(one.pem for one in authorities)).decode()
    patch = [
        {"op": "add", "path": f"/webhooks/{number}/clientConfig", "value": {"url": url, "caBundle": bundle}}
        for number in range(2)
    ]
    kubectl("patch", CONFIGURATION, "--type=json", "-p", json.dumps(patch))


def test_replica_that_is_told_to_stop_answers_what_it_is_asked_until_nobody_asks(
    webhook: Webhook, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """An upgrade: a second replica starts, traffic moves there, the first one ends; no review is lost."""
    kubectl = webhook.kubectl
    other = WebhookProcess(control_plane, tmp_path, "--drain-seconds", "8")
    with ExitStack() as stack:
        stack.callback(webhook.works)
        stack.callback(lambda: point_at(kubectl, webhook.process.url))
        stack.callback(other.kill)
        other.start()
        eventually(other.is_ready, seconds=60)
        point_at(kubectl, other.url)
        Webhook(other, kubectl).works()

        def stop() -> None:
            subprocess.run(["kill", "-TERM", str(other.pid)], check=True)
            eventually(lambda: "stopping" in other.readiness(), what="it is not ready any more")
            point_at(kubectl, webhook.process.url)  # as endpoints change when a pod is not ready

        def ended() -> None:
            eventually(lambda: "Stopping" in other.log.read_text() and not is_up(other), seconds=30, what="its end")

        failed, asked = asyncio.run(load(control_plane, 200, [stop, ended]))
        assert failed == []
        assert asked >= 200


def is_up(process: WebhookProcess) -> bool:
    try:
        process.get("/healthz")
    except OSError:
        return False
    return True
