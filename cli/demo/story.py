"""The demo's story: a commit that takes devices, a claim, a commit that gives half of them back, and a reboot."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from cli.checkout import KUSTOMIZE_BASE
from cli.cluster.run.control_plane import ControlPlane
from cli.demo import past_git, published, vgpus
from cli.demo.cluster_view import ClusterView, unsettled, unsettled_maps
from cli.demo.fleet import DAEMONS, PROFILE_WRITER, Fleet
from cli.demo.repository import PolicyRepository
from cli.devices.assemble import assemble
from cli.devices.cluster import read_cluster
from cli.devices.rows import Listing
from cli.devices.table import table
from cli.errors import CommandError
from cli.progress import Progress, duration

POOLS = {
    "node-atom": "atom-vm",
    "node-rebel100": "rebel-vm",
    "node-mixed": "mixed",
    "node-hostile": "hostile",
    vgpus.NODE: "l40s-vgpu",
}
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
            f"Starting {len(POOLS)} simulated nodes and their daemons", "Nodes and daemons started"
        ) as step:
            for name, pool in POOLS.items():
                components = (*DAEMONS, PROFILE_WRITER) if name == vgpus.NODE else DAEMONS
                self.fleet.start_node(name, name, {"npufleet.io/pool": pool}, components=components)
            self.fleet.start_controllers()
            self.view.until(step, "registration of the nodes", self._unregistered, check=self.fleet.check)
            for name in POOLS:
                self.fleet.start_daemons(name)

    def first_commit(self) -> None:
        """Policies for all nodes."""
        folder = resources.files("cli.demo") / "policies"
        files = {entry.name: entry.read_text() for entry in folder.iterdir() if entry.name.endswith(".yaml")}
        before = self.fleet.drivers(ATOM)
        message = f"Give the NPUs and GPUs of {len(POOLS)} nodes to VMs"
        self._heading(f"Commit {self.repository.commit(files, message)}: {message}")
        self._apply_head()
        self._show_policies()
        self._show_drivers(before)
        self._show_vgpus(0)
        self._show_blockers("hostile-everything", "are left alone")
        self._show_blockers("mixed-uses", "go to nobody new")
        print(f"\n$ {published.CLASSES}\n{self.view.run('get', 'deviceclasses')}", end="")
        slices = self.view.run("get", "resourceslices", "-o", "json")
        print(f"\n$ {published.SLICES}\n{published.pools(slices)}", end="")

    def claim(self) -> None:
        """A pod asks for an NPU by product and topology; the scheduler picks one, and it is prepared on the node."""
        self._heading("A pod asks for an NPU of NUMA node 0")
        manifest = resources.files("cli.demo") / "workloads/claim.yaml"
        print(manifest.read_text(), end="")
        with self.progress.step("Waiting for the account of pods", "There is one") as step:
            self.view.until(step, "it", self._no_account, check=self.fleet.check)
        with resources.as_file(manifest) as path:
            self.view.run("apply", "--server-side", "--filename", str(path))
        with self.progress.step("Scheduling, preparing and starting the pod", "The pod runs") as step:
            self.view.until(step, "the pod", self._not_running, check=self.fleet.check)
        print("\n$ kubectl get resourceclaims,pods -o wide")
        print(self.view.run("get", "resourceclaims,pods", "-o", "wide"))
        self._show_devices()

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

    def vgpu_commit(self) -> None:
        """Each L40S carries vGPUs of two sizes from now on."""
        before = len(self.fleet.write_log(vgpus.NODE))
        text = (self.repository.directory / vgpus.MAP).read_text()
        message = "Mix vGPU sizes on each L40S"
        changed = text.replace(vgpus.HALVES, vgpus.MIXED)
        self._heading(f"Commit {self.repository.commit({vgpus.MAP: changed}, message)}: {message}")
        print(self.repository.change_of_head())
        self._apply_head()
        self._show_vgpus(before)

    def past_git(self) -> None:
        """Somebody who has every right changes a policy by hand, and is told to commit."""
        self._heading("A change past Git")
        with self.progress.step(
            "Letting only Git write (kustomize/components/only-git-writes/deny)", "Only Git writes from now on"
        ) as step:
            past_git.forbid(self.view)
            self.view.until(step, "it", lambda: past_git.still_possible(self.view), check=self.fleet.check)
        print(f"$ {past_git.COMMAND}\n{past_git.refusal(self.view)}")

    def reboot(self) -> None:
        """The node forgets its bindings; its binder makes them anew."""
        self._heading(f"Reboot of {ATOM} and {vgpus.NODE}")
        claimed = self._claimed()
        carried = vgpus.vgpus(self.fleet.nodes[vgpus.NODE].root)
        written = len(self.fleet.write_log(vgpus.NODE))
        boots = {name: self.fleet.reboot(name) for name in (ATOM, vgpus.NODE)}
        boot = boots[ATOM]
        after_boot = self.fleet.drivers(ATOM)
        print(f"The kernel is up again (boot {boot[:8]}…): {_summary(after_boot)}")
        print(f"On {vgpus.NODE} {vgpus.summary(vgpus.vgpus(self.fleet.nodes[vgpus.NODE].root))}")
        with self.progress.step(
            "Waiting for their daemons to make it so again", "The nodes are as their policies ask again"
        ) as step:
            for name in boots:
                self.fleet.start_daemons(name)
            self.view.until(step, "the nodes' reports", lambda: self._not_reported(boots), check=self.fleet.check)
            self.view.until(step, "the policies", self._unsettled, check=self.fleet.check)
        print(f"With its daemons running again: {_summary(self.fleet.drivers(ATOM))}")
        self._show_vgpus(written)
        again = vgpus.vgpus(self.fleet.nodes[vgpus.NODE].root)
        if again != carried:
            raise CommandError(f"{vgpus.NODE} carried {carried} before the reboot, and carries {again} now")
        self._show_policies()
        if claimed:
            with self.progress.step("Preparing the pod's claim again", "The pod runs again") as step:
                self.view.until(step, "the pod", self._not_running, check=self.fleet.check)
            if self._claimed() != claimed:
                raise CommandError(f"the claim had {claimed} before the reboot, and has {self._claimed()} now")
            print(f"The pod runs, and its claim still has {claimed}")

    def quiet(self) -> None:
        """With everything in place nothing is written."""
        before = self._orders()
        contents = self._contents()
        self._heading("Restart of controllers and daemons")
        self.fleet.restart_controllers()
        for name in POOLS:
            self.fleet.restart_daemons(name)
        with self.progress.step("Restarting controllers and daemons", "Controllers and daemons restarted") as step:
            self.view.until(step, "the restarted processes", self.fleet.not_ready, check=self.fleet.check)
        writes = self._orders() - before
        after = self._contents()
        changed = [name for name in contents.keys() | after.keys() if contents.get(name) != after.get(name)]
        print(f"sysfs writes: {writes}; node states, slices and claims changed: {len(changed)}")
        if writes or changed:
            told = ", ".join(sorted(changed)) or "the hosts"
            raise CommandError(f"a restart must be invisible, and this one was not: {told}")

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

    def _show_blockers(self, policy: str, what: str) -> None:
        ready = self.view.run("get", "npunodepolicy", policy, "-o", _DEVICES_READY)
        print(f"\n{policy}: {ready} devices ready; the others {what} (status.blockers):")
        print(self.view.run("get", "npunodepolicy", policy, "-o", _BLOCKERS), end="")

    def _show_drivers(self, before: dict[str, str]) -> None:
        after = self.fleet.drivers(ATOM)
        print(f"\nDrivers on {ATOM} (its sysfs):")
        print(f"  before: {_summary(before)}\n  after:  {_summary(after)}")
        for address, driver in after.items():
            if before.get(address) != driver:
                print(f"  {address}  {before.get(address)} → {driver}")

    def _show_vgpus(self, since: int) -> None:
        print("\n$ kubectl get vgpuprofilemaps\n" + self.view.run("get", "vgpuprofilemaps"), end="")
        print(f"vGPUs on {vgpus.NODE} (its sysfs): {vgpus.summary(vgpus.vgpus(self.fleet.nodes[vgpus.NODE].root))}")
        print("What its profile writer ordered, in this order:")
        for line in vgpus.orders(self.fleet.write_log(vgpus.NODE)[since:]):
            print(f"  {line}")

    def _unregistered(self) -> str:
        present = {node["metadata"]["name"] for node in self.view.items("nodes")}
        return ", ".join(name for name in POOLS if name not in present)

    def _unsettled(self) -> str:
        # In one call: kubectl takes more time than the API server.
        found = self.view.items("npunodepolicies,npunodestates,vgpuprofilemaps")
        by_kind: dict[str, list[dict[str, Any]]] = {}
        for item in found:
            by_kind.setdefault(item["kind"], []).append(item)
        waiting = unsettled(by_kind.get("NPUNodePolicy", []), by_kind.get("NPUNodeState", []))
        return waiting or unsettled_maps(by_kind.get("VGPUProfileMap", []))

    def _not_reported(self, boots: Mapping[str, str]) -> str:
        reports = {state["metadata"]["name"]: state.get("status", {}) for state in self.view.items("npunodestates")}
        return " and ".join(
            f"{part} of {name}"
            for name, boot in boots.items()
            for part in ("bindings", "publication", *(("profiles",) if name == vgpus.NODE else ()))
            if reports[name].get(part, {}).get("bootID") != boot
        )

    def _orders(self) -> int:
        """How often anybody has ordered the hosts to change something."""
        return sum(vgpus.is_order(record) for name in POOLS for record in self.fleet.write_log(name))

    def _contents(self) -> dict[str, str]:
        """All that was made for nodes, slices and claims. Who uses a device is told anew by whoever looks next."""
        found = [item for kind in _QUIET for item in self.view.items(kind)]
        for item in found:
            for device in item.get("status", {}).get("inventory", {}).get("devices", []):
                device.pop("usedBy", None)
        return {
            f"{item['kind']}/{item['metadata']['name']}": json.dumps([item["spec"], item.get("status")], sort_keys=True)
            for item in found
        }

    def _no_account(self) -> str:
        return "" if self.view.exists("serviceaccount", "default") else "the account"

    def _not_running(self) -> str:
        phase = self.view.run("get", "pod", _POD, "-o", _READY)
        return "" if phase == "Running True" else f"the pod ({phase.strip()})"

    def _claimed(self) -> str:
        """The device that the pod's claim has, "" when there is no claim."""
        return self.view.run("get", "resourceclaim", _CLAIM, "--ignore-not-found", "-o", _ALLOCATED)

    def _devices(self, *nodes: str) -> Listing:
        return assemble(asyncio.run(read_cluster(self.plane.admin_kubeconfig, nodes)))

    def _show_devices(self) -> None:
        nodes = [name for name in POOLS if name != vgpus.NODE]  # 32 virtual functions would hide the rest
        print(f"$ npufleet devices {' '.join(nodes)}\n" + "\n".join(table(self._devices(*nodes).rows, wide=False)))

    @staticmethod
    def _heading(text: str) -> None:
        print(f"\n━━ {text} " + "━" * max(0, 76 - len(text)), flush=True)


_CLAIM, _POD = "npu", "vm"
_QUIET = ("npunodestates", "vgpuprofilemaps", "resourceslices", "resourceclaims")
_ALLOCATED = "jsonpath={.status.allocation.devices.results[0].device}"
_READY = 'jsonpath={.status.phase} {.status.conditions[?(@.type=="Ready")].status}'
_DEVICES_READY = "jsonpath={.status.devices.ready} of {.status.devices.matched}"
_BLOCKERS = 'jsonpath={range .status.blockers[*]}  {.device}  {.reason}: {.message}{"\\n"}{end}'


def _summary(drivers: dict[str, str]) -> str:
    return ", ".join(f"{count} x {driver}" for driver, count in sorted(Counter(drivers.values()).items()))
