"""The webhook installed in a cluster for the tests of one file, and taken out again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cli.cluster.run.control_plane import ControlPlane
from tests.builders.reviews import policy
from tests.builders.waiting import eventually
from tests.builders.webhook_process import CONFIGURATION, Kubectl, WebhookProcess, in_force, write_installation


@contextmanager
def installed_webhook(plane: ControlPlane, kubectl: Kubectl, directory: Path) -> Iterator[WebhookProcess]:
    """In force: the API server asks it, and a bad object is refused by its rule."""
    process = WebhookProcess(plane, directory, "--drain-seconds", "0.5")
    bad = policy(products=["RBLN-CA2"]) | {"metadata": {"name": "webhook-probe"}}
    with ExitStack() as stack:
        stack.callback(process.stop)
        stack.callback(kubectl, "delete", "secret/npufleet-webhook-tls", "-n=npufleet-system", "--ignore-not-found")
        stack.callback(kubectl, "delete", CONFIGURATION, "--ignore-not-found")
        process.start()
        kubectl("apply", "--server-side", "--kustomize", str(write_installation(directory, process.url)))
        eventually(process.is_ready, seconds=60, what="the webhook is ready")
        eventually(lambda: in_force(kubectl, json.dumps(bad), "NPF-NP-101"), seconds=60, what="it refuses")
        yield process
