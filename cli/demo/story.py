"""The demo's story: a commit that takes devices, a commit that gives half of them back, and a reboot."""

from __future__ import annotations

import time
from collections import Counter
from importlib import resources
from pathlib import Path

from cli.checkout import KUSTOMIZE_BASE
from cli.cluster.run.control_plane import ControlPlane
from cli.demo.cluster_view import ClusterView, unsettled
from cli.demo.fleet import Fleet
from cli.demo.repository import PolicyRepository
from cli.errors import CommandError
from cli.progress import Progress, duration

POOLS = {"node-atom": "atom-vm", "node-rebel100": "rebel-vm", "node-mixed": "mixed", "node-hostile": "hostile"}
ATOM = "node-atom"
_HALF = "  - name: vm-npus\n    limit: 8\n"


class Story:
    """Tells what happens step by step on stdout; progress and waiting go to stderr."""

    def __init__(self, plane: ControlPlane, fleet: Fleet, directory: Path, progress: Progress) -> None:
        self.plane = plane
        self.fleet = fleet
        self.directory = directory
        self.view = ClusterView(plane.admin_kubeconfig)
        self.progress = progress
        self.repository = PolicyRepository(directory / "policies")
        self._applied = 0.0

    def install(self) -> None:
        """The API, the identities, and the machines."""
        with self.progress.step("Installing npufleet (kustomize/base)", "npufleet installed"):
            self.view.apply(KUSTOMIZE_BASE)
            self.view.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        with self.progress.step(
            f"Starting {len(POOLS)} simulated nodes and their binders", "Nodes and binders started"
        ) as step:
            for name, pool in POOLS.items():
                self.fleet.start_node(name, name, {"npufleet.io/pool": pool})
            self.fleet.start_controllers()
            self.view.until(step, "registration of the nodes", self._unregistered, check=self.fleet.check)
            for name in POOLS:
                self.fleet.start_binder(name)

    def first_commit(self) -> None:
        """Policies for all four nodes."""
        folder = resources.files("cli.demo") / "policies"
        files = {entry.name: entry.read_text() for entry in folder.iterdir() if entry.name.endswith(".yaml")}
        before = self.fleet.drivers(ATOM)
        message = f"Give the NPUs of {len(POOLS)} nodes to VMs"
        self._heading(f"Commit {self.repository.commit(files, message)}: {message}")
        self._apply_head()
        self._show_policies()
        self._show_drivers(before)
        ready = self.view.run("get", "npunodepolicy", "hostile-everything", "-o", _DEVICES_READY)
        print(f"\nnode-hostile: {ready} devices ready; the others are left alone (status.blockers of its policy):")
        print(self.view.run("get", "npunodepolicy", "hostile-everything", "-o", _BLOCKERS), end="")

    def second_commit(self) -> None:
        """Eight of the sixteen NPUs go back."""
        before = self.fleet.drivers(ATOM)
        text = (self.repository.directory / "atom.yaml").read_text()
        changed = text.replace("  - name: vm-npus\n", _HALF)
        message = "Give eight of the sixteen NPUs back to the host"
        self._heading(f"Commit {self.repository.commit({'atom.yaml': changed}, message)}: {message}")
        print(self.repository.change_of_head())
        self._apply_head()
        self._show_policies()
        self._show_drivers(before)

    def reboot(self) -> None:
        """The node forgets its bindings; its binder makes them anew."""
        self._heading(f"Reboot of {ATOM}")
        boot = self.fleet.reboot(ATOM)
        after_boot = self.fleet.drivers(ATOM)
        print(f"The kernel is up again (boot {boot[:8]}…): {_summary(after_boot)}")
        with self.progress.step(
            "Waiting for the binder to make it so again", "The node is as its policy asks again"
        ) as step:
            self.fleet.start_binder(ATOM)
            self.view.until(step, "the node's report", lambda: self._not_reported(boot), check=self.fleet.check)
            self.view.until(step, "the policies", self._unsettled, check=self.fleet.check)
        print(f"With its binder running again: {_summary(self.fleet.drivers(ATOM))}")
        self._show_policies()

    def quiet(self) -> None:
        """With everything in place nothing is written."""
        before = {name: len(self.fleet.write_log(name)) for name in POOLS}
        versions = self._versions()
        self._heading("Restart of controllers and binders")
        self.fleet.restart_controllers()
        for name in POOLS:
            self.fleet.restart_binder(name)
        with self.progress.step("Restarting controllers and binders", "Controllers and binders restarted") as step:
            self.view.until(step, "the restarted processes", self.fleet.not_ready, check=self.fleet.check)
        writes = sum(len(self.fleet.write_log(name)) - before[name] for name in POOLS)
        changed = [name for name, version in self._versions().items() if versions[name] != version]
        print(f"sysfs writes: {writes}; node states changed: {len(changed)}")
        if writes or changed:
            raise CommandError("a restart must be invisible, and this one was not")

    def _apply_head(self) -> None:
        exported = self.repository.export_head(self.directory / "checkout" / str(time.monotonic_ns()))
        self._applied = time.monotonic()
        self.view.apply(exported)
        with self.progress.step("Rolling out", "Rolled out") as step:
            self.view.until(step, "the rollout", self._unsettled, check=self.fleet.check)
        took = duration(time.monotonic() - self._applied)
        print(f"From the start of kubectl apply until all that may change has changed: {took}")

    def _show_policies(self) -> None:
        print("\n$ kubectl get npunodepolicies\n" + self.view.run("get", "npunodepolicies"), end="")
        print("\n$ kubectl get npunodestates\n" + self.view.run("get", "npunodestates"), end="")

    def _show_drivers(self, before: dict[str, str]) -> None:
        after = self.fleet.drivers(ATOM)
        print(f"\nDrivers on {ATOM} (its sysfs):")
        print(f"  before: {_summary(before)}\n  after:  {_summary(after)}")
        for address, driver in after.items():
            if before.get(address) != driver:
                print(f"  {address}  {before.get(address)} → {driver}")

    def _unregistered(self) -> str:
        present = {node["metadata"]["name"] for node in self.view.items("nodes")}
        return ", ".join(name for name in POOLS if name not in present)

    def _unsettled(self) -> str:
        return unsettled(self.view.items("npunodepolicies"), self.view.items("npunodestates"))

    def _not_reported(self, boot: str) -> str:
        reports = {state["metadata"]["name"]: state.get("status", {}) for state in self.view.items("npunodestates")}
        return "" if reports[ATOM].get("bindings", {}).get("bootID") == boot else f"the report of {ATOM}"

    def _versions(self) -> dict[str, str]:
        return {s["metadata"]["name"]: s["metadata"]["resourceVersion"] for s in self.view.items("npunodestates")}

    @staticmethod
    def _heading(text: str) -> None:
        print(f"\n━━ {text} " + "━" * max(0, 76 - len(text)), flush=True)


_DEVICES_READY = "jsonpath={.status.devices.ready} of {.status.devices.matched}"
_BLOCKERS = 'jsonpath={range .status.blockers[*]}  {.device}  {.reason}: {.message}{"\\n"}{end}'


def _summary(drivers: dict[str, str]) -> str:
    return ", ".join(f"{count} x {driver}" for driver, count in sorted(Counter(drivers.values()).items()))
