"""Nodes on a real API server with binders on paper, and the controller as a real process, for the cluster plane."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.errors import ApiCallError
from cli.cluster.run.processes import spawn
from tests.builders.api_calls import delete, find
from tests.builders.paper_binder import Card, address, report_on

Object = dict[str, Any]
STATES = "/apis/npufleet.io/v1alpha1/npunodestates"
POLICIES = "/apis/npufleet.io/v1alpha1/npunodepolicies"
NODES = "/api/v1/nodes"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/npufleet-system/leases/npufleet-node-policy"


class LiveFleet:
    """Nodes and policies of one test; `clear` removes them. Binders answer while `until` waits."""

    def __init__(self, api: ApiAccess) -> None:
        self.api = api
        self.cards: dict[str, dict[str, Card]] = {}
        self.silent: set[str] = set()
        self._policies: set[str] = set()

    def add_node(
        self, name: str, cards: Mapping[str, Card] | int = 1, *, labels: Mapping[str, str] | None = None
    ) -> None:
        found = {address(n): Card() for n in range(cards)} if isinstance(cards, int) else dict(cards)
        self.cards[name] = found
        meta = {"name": name, "labels": dict(labels or {})}
        self.api.call("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": meta})
        boot = {"nodeInfo": {"bootID": f"boot-{name}"}}
        self.edit(f"{NODES}/{name}", lambda node: node.update(status=boot), subresource="status")

    def edit_node(self, name: str, change: Callable[[Object], None]) -> None:
        """As a person does, with kubectl."""
        self.edit(f"{NODES}/{name}", change)

    def edit(self, path: str, change: Callable[[Object], None], *, subresource: str = "") -> None:
        """Read, change and write an object that others write too (the controller manager, say), hence the attempts."""
        for _ in range(20):
            found = self.api.call("GET", path)
            change(found)
            try:
                self.api.call("PUT", f"{path}/{subresource}" if subresource else path, found)
            except ApiCallError as error:
                if error.status != 409:
                    raise
            else:
                return
        raise AssertionError(f"{path} was never left alone for one write")

    def apply(self, policy: Object) -> Object:
        """Create or update a policy."""
        name = policy["metadata"]["name"]
        self._policies.add(name)
        body = {**policy, "metadata": {"name": name}}
        body.pop("status", None)
        for _ in range(20):
            known = find(self.api, f"{POLICIES}/{name}")
            try:
                if known is None:
                    found: Object = self.api.call("POST", POLICIES, body)
                else:
                    body["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"]
                    found = self.api.call("PUT", f"{POLICIES}/{name}", body)
            except ApiCallError as error:
                if error.status != 409:  # the controller has written its status meanwhile
                    raise
            else:
                return found
        raise AssertionError(f"{name} is written by somebody else again and again")

    def delete_policy(self, name: str) -> None:
        self.api.call("DELETE", f"{POLICIES}/{name}")

    def answer(self, name: str) -> None:
        """The binder of a node obeys and reports, if it has anything new to say."""
        state = find(self.api, f"{STATES}/{name}")
        if state is None or name in self.silent:
            return
        said = report_on(state, self.cards[name], f"boot-{name}")
        status = state.get("status") or {}
        if all(status.get(subtree) == report for subtree, report in said.items()):
            return
        state["status"] = {**status, **said}
        try:
            self.api.call("PUT", f"{STATES}/{name}/status", state)
        except ApiCallError as error:
            if error.status != 409:  # somebody wrote meanwhile: the next answer will do
                raise

    def until(self, condition: Callable[[], object], *, seconds: float = 30.0, what: str = "") -> None:
        """Let the binders answer until the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what or condition}: {self.describe()}"
            for name in self.cards:
                self.answer(name)
            time.sleep(0.05)

    def ready(self, policy: str, reason: str = "AllDevicesReady", *, seconds: float = 30.0) -> None:
        """Wait until the policy is ready for its present generation."""

        def is_ready() -> bool:
            found = self.policy(policy)
            status = found.get("status") or {}
            current = status.get("observedGeneration") == found["metadata"]["generation"]
            return current and condition(found, "Ready") == ("True", reason)

        self.until(is_ready, seconds=seconds, what=f"{policy} is ready with {reason}")

    def policy(self, name: str) -> Object:
        found: Object = self.api.call("GET", f"{POLICIES}/{name}")
        return found

    def state(self, name: str) -> Object:
        found: Object = self.api.call("GET", f"{STATES}/{name}")
        return found

    def orders(self, name: str) -> dict[str, Object]:
        state = find(self.api, f"{STATES}/{name}") or {"spec": {}}
        return {entry["address"]: entry for entry in state["spec"].get("devices", [])}

    def versions(self) -> dict[str, str]:
        """resourceVersion of every policy and state of this test."""
        policies = [find(self.api, f"{POLICIES}/{name}") for name in sorted(self._policies)]
        found = [self.state(name) for name in sorted(self.cards)] + [policy for policy in policies if policy]
        return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"] for item in found}

    def describe(self) -> str:
        """For messages of failed tests."""
        policies = {name: (find(self.api, f"{POLICIES}/{name}") or {}).get("status") for name in sorted(self._policies)}
        return json.dumps({"policies": policies, "orders": {name: self.orders(name) for name in self.cards}})

    def clear(self) -> None:
        """Remove everything of this test, so that no other test meets it."""
        paths = [f"{POLICIES}/{name}" for name in self._policies]
        paths += [f"{kind}/{name}" for name in self.cards for kind in (NODES, STATES)]
        for path in [*paths, LEASE]:
            delete(self.api, path)


def condition(policy: Object, kind: str) -> tuple[str, str]:
    """Status and reason of a condition; empty texts when there is none yet."""
    for found in (policy.get("status") or {}).get("conditions", []):
        if found["type"] == kind:
            return found["status"], found["reason"]
    return "", ""


class ControllerProcess:
    """`npufleet-controllers node-policy` as a process."""

    def __init__(self, kubeconfig: Path, log: Path, *options: str, environment: dict[str, str] | None = None) -> None:
        self.log = log
        command = [sys.executable, "-m", "controllers.main", "node-policy", "--kubeconfig", str(kubeconfig)]
        command += ["--listen", "127.0.0.1:0", "--log-format", "text", *options]
        self.process: subprocess.Popen[bytes] = spawn(command, output=log, environment=environment)

    @property
    def address(self) -> str:
        """Where it serves health; waits until it has said so."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for line in self.log.read_text().splitlines() if self.log.exists() else ():
                if line.startswith('{"listening"'):
                    return str(json.loads(line)["listening"])
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log.read_text()}"
            time.sleep(0.05)
        raise AssertionError(f"it does not listen:\n{self.log.read_text()}")

    def get(self, path: str) -> tuple[int, str]:
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=1)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def is_ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def value(self, metric: str) -> float:
        """The value of a metric given with its labels as in /metrics; 0 when it is not there."""
        for line in self.get("/metrics")[1].splitlines():
            name, _, value = line.rpartition(" ")
            if name == metric:
                return float(value)
        return 0.0

    def plans(self) -> float:
        """Reconciles so far; the first of a process is a plan."""
        return self.value('npufleet_reconcile_total{controller="node-policy",result="success"}') + self.value(
            'npufleet_reconcile_total{controller="node-policy",result="requeue"}'
        )

    def stop(self) -> int:
        """As the kubelet ends it; returns the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(30)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
