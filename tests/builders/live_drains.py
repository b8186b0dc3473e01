"""Nodes to be drained on a real API server: pods and claims on them, and kubelet, publisher and webhook on paper."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from aiohttp import web

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.access.certificates import authority_at, server_pair, write_pair
from cli.cluster.errors import ApiCallError
from tests.builders import objects
from tests.builders.api_calls import delete, find
from tests.builders.audit import OURS
from tests.builders.node_policy_cluster import LEASE, NODES, STATES, LiveFleet
from tests.builders.waiting import eventually
from tests.builders.workloads import allocation, claim, pod

Object = dict[str, Any]
DRIVER = "npufleet.io"


class DrainFleet(LiveFleet):
    """A fleet with pods on it, in a namespace of its own.

    While `until` waits, pods that were evicted end (but those named in `lingering`), and the publisher of a node in
    `publishing` withholds a device whose orders changed and hands it over once no claim holds it.
    """

    def __init__(self, api: ApiAccess) -> None:
        super().__init__(api)
        self.namespace = f"drain-{uuid.uuid4().hex[:8]}"
        self.lingering: set[str] = set()
        self.publishing: set[str] = set()
        self.cordons: set[str] = set()
        """Nodes that were ever seen unschedulable."""
        self._path = f"/api/v1/namespaces/{self.namespace}"
        self._claims = f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims"
        self._budgets = f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets"
        api.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        eventually(lambda: find(self.api, f"{self._path}/serviceaccounts/default"), what="the account of pods")

    # Workloads.

    def add_pod(self, name: str, node: str, *, claims: Iterable[str] = (), **given: Any) -> Object:
        """A ready pod on the node; with `claims` it holds devices, given as the names of the slices."""
        devices = list(claims)
        if devices:
            self.api.call("POST", self._claims, claim(name, namespace=self.namespace))
        wanted = pod(name, node=node, namespace=self.namespace, claims=[name] if devices else [], **given)
        made = self.api.call("POST", f"{self._path}/pods", wanted)
        self._write_status(f"{self._path}/pods/{name}", {"phase": "Running", "conditions": _READY})
        if devices:
            self._write_status(f"{self._claims}/{name}", allocation(devices, [made], pool=node, driver=DRIVER))
        found: Object = made
        return found

    def add_claim(self, name: str, node: str, device: str) -> None:
        """A claim that a device is allocated to, reserved for something that is no pod: no kubelet asks for it."""
        self.api.call("POST", self._claims, claim(name, namespace=self.namespace))
        consumer = {"apiGroup": "workloads.example.io", "resource": "jobs", "name": name, "uid": f"uid-{name}"}
        status = allocation([device], pool=node, driver=DRIVER, others=[consumer])
        self._write_status(f"{self._claims}/{name}", status)

    def end_claim(self, name: str) -> None:
        """Nobody needs it any more."""

        def give_up(found: Object) -> None:
            found["status"] = {}

        self.edit(f"{self._claims}/{name}", give_up, subresource="status")
        self.edit(f"{self._claims}/{name}", lambda found: found["metadata"].pop("finalizers", None))
        delete(self.api, f"{self._claims}/{name}")

    def use(self, node: str, address: str, user: Object) -> None:
        """A process of the pod opens the device."""
        self.cards[node][address].pods.append(user["metadata"]["uid"])

    def add_budget(self, name: str, labels: Mapping[str, str]) -> None:
        """A budget that lets none of the pods with these labels go."""
        spec = {"minAvailable": 1, "selector": {"matchLabels": dict(labels)}}
        self.api.call("POST", self._budgets, {"metadata": {"name": name}, "spec": spec})
        eventually(lambda: (self.api.call("GET", f"{self._budgets}/{name}").get("status") or {}).get("expectedPods"))

    def pods(self) -> dict[str, Object]:
        return {item["metadata"]["name"]: item for item in self.api.call("GET", f"{self._path}/pods")["items"]}

    def end_pod(self, name: str) -> None:
        """As the kubelet says that it has ended; its processes are gone."""
        found = find(self.api, f"{self._path}/pods/{name}")
        if found is None:
            return
        for cards in self.cards.values():
            for card in cards.values():
                card.pods = [uid for uid in card.pods if uid != found["metadata"]["uid"]]
        delete(self.api, f"{self._path}/pods/{name}", {"gracePeriodSeconds": 0})

    # Nodes.

    def node(self, name: str) -> Object:
        found: Object = self.api.call("GET", f"{NODES}/{name}")
        if found["spec"].get("unschedulable"):
            self.cordons.add(name)
        return found

    def marks(self, name: str) -> dict[str, str]:
        """The annotations of npufleet, without their domain."""
        annotations = self.node(name)["metadata"].get("annotations") or {}
        return {key.removeprefix("npufleet.io/"): text for key, text in annotations.items() if "npufleet.io/" in key}

    def rollout(self, name: str) -> Object:
        state = find(self.api, f"{STATES}/{name}") or {}
        found: Object = (state.get("status") or {}).get("rollout") or {}
        return found

    def draining(self, name: str) -> tuple[str, str, str]:
        """Status, reason and message of the condition of that name; empty texts when there is none."""
        for found in self.rollout(name).get("conditions", []):
            if found["type"] == "Draining":
                return found["status"], found["reason"], found.get("message", "")
        return "", "", ""

    def leader(self) -> str:
        """Which controller leads, by its Lease."""
        lease = find(self.api, LEASE) or {"spec": {}}
        return str(lease["spec"].get("holderIdentity") or "")

    # The daemons' part.

    def answer(self, name: str) -> None:
        for found in self.pods().values():
            if found["metadata"].get("deletionTimestamp") and found["metadata"]["name"] not in self.lingering:
                self.end_pod(found["metadata"]["name"])
        if name in self.publishing:
            self._publish(name)
        self.node(name)
        super().answer(name)

    def _publish(self, name: str) -> None:
        state = find(self.api, f"{STATES}/{name}")
        if state is None:
            return
        held = self._held(name) if self.cards[name] else set()
        reports = []
        for order in state["spec"].get("devices", []):
            place = order["address"]
            card = self.cards[name][place]
            wanted = order["mode"] == "Passthrough" and order["intent"] != "Release"
            if order["intent"] == "Hold" or card.bound == wanted:
                card.published = True
                reports.append(objects.device_report(place, "Ready", "Published"))
            elif place in held:
                card.published = True
                reports.append(objects.device_report(place, "Pending", "HandOver", message="a claim is allocated"))
            else:
                card.published = False
                reports.append(objects.device_report(place, "Pending", "HandedOver"))
        said = objects.report(reports, generation=state["metadata"]["generation"], boot_id=f"boot-{name}")
        if (state.get("status") or {}).get("publication") == said:
            return
        state["status"] = {**(state.get("status") or {}), "publication": said}
        try:
            self.api.call("PUT", f"{STATES}/{name}/status", state)
        except ApiCallError as error:
            if error.status != 409:
                raise

    def _held(self, node: str) -> set[str]:
        """Addresses of devices of the node that claims hold."""
        found = set()
        for item in self.api.call("GET", self._claims)["items"]:
            results = (item.get("status") or {}).get("allocation", {}).get("devices", {}).get("results", [])
            for result in results:
                if result["pool"] == node:
                    domain, bus, device, function = result["device"].split("-")[1:5]
                    found.add(f"{domain}:{bus}:{device}.{function}")
        return found

    def clear(self) -> None:
        self.lingering.clear()
        for name in self.pods():
            self.end_pod(name)
        super().clear()
        delete(self.api, f"/api/v1/namespaces/{self.namespace}")

    def _write_status(self, path: str, status: Object) -> None:
        def put_in(found: Object) -> None:
            found["status"] = {**(found.get("status") or {}), **status}

        self.edit(path, put_in, subresource="status")


_READY = [{"type": "Ready", "status": "True"}]


class EvictionWebhook:
    """Answers reviews of evictions in one namespace with 429 and `words`, as KubeVirt does while it moves a VM."""

    def __init__(self, api: ApiAccess, namespace: str, directory: Path, words: str) -> None:
        self.reviews = 0
        self._api = api
        self._namespace = namespace
        self._words = words
        self._name = f"evictions.{namespace}.example.io"
        self._authority = authority_at(directory / "ca.crt", directory / "ca.key", "evictions")
        pair = server_pair(self._authority, "evictions", ("127.0.0.1",))
        write_pair(pair, directory / "tls.crt", directory / "tls.key")
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(directory / "tls.crt", directory / "tls.key")
        self._port = 0
        self._ready, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="webhook", daemon=True)

    def __enter__(self) -> EvictionWebhook:
        self._thread.start()
        assert self._ready.wait(10), "the webhook did not start"

        client = {
            "url": f"https://127.0.0.1:{self._port}/review",
            "caBundle": base64.b64encode(self._authority.pem).decode(),
        }
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"], "operations": ["CREATE"]}
        webhook = {
            "name": self._name,
            "clientConfig": client,
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 5,
        }
        self._api.call("POST", _WEBHOOKS, {"metadata": {"name": self._name}, "webhooks": [webhook]})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._api.call("DELETE", f"{_WEBHOOKS}/{self._name}")
        self._stopping.set()
        self._thread.join(10)

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_post("/review", self._review)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self._port = runner.addresses[0][1]
        self._ready.set()
        await asyncio.to_thread(self._stopping.wait)
        await runner.cleanup()

    async def _review(self, request: web.Request) -> web.Response:
        self.reviews += 1
        asked = (await request.json())["request"]
        status = {"code": 429, "reason": "TooManyRequests", "message": self._words}
        response = {"uid": asked["uid"], "allowed": False, "status": status}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


class AuditedWrite:
    """One write of npufleet in the audit log. `process` tells tokens, and so processes, apart."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        reference = entry["objectRef"]
        self.verb: str = entry["verb"]
        self.resource: str = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        self.name: str = reference.get("name", "")
        self.code: int = entry.get("responseStatus", {}).get("code", 0)
        self.at: str = entry["requestReceivedTimestamp"]
        self.body: Object = entry.get("requestObject") or {}
        self.process: str = str((entry["user"].get("extra") or {}).get("authentication.kubernetes.io/credential-id"))


def audited_writes(log: Path, *, since: int = 0) -> list[AuditedWrite]:
    """The writes of npufleet's components after the byte offset, Leases and Events apart."""
    found = []
    with log.open("rb") as stream:
        stream.seek(since)
        for line in stream:
            entry = json.loads(line)
            ours = entry["user"]["username"].startswith(OURS) and entry["verb"] not in {"get", "list", "watch"}
            if ours and entry["objectRef"]["resource"] not in {"leases", "events"}:
                found.append(AuditedWrite(entry))
    return found
