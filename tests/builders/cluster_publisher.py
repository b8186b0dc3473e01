"""The played publisher of a node on a real API server, where it reads orders and claims and writes its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.errors import ApiCallError
from crds.device_names import address_of
from crds.models.node_state import DeviceState, NodeStateSpec
from node_host.boot import read_boot_id
from node_host.host import open_host
from tests.builders.node_policy_cluster import STATES
from tests.builders.played_publisher import Offer, PlayedPublisher, Stand

Object = dict[str, Any]
CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
_STATES = {
    Stand.PUBLISHED: "Ready",
    Stand.HAND_OVER: "Pending",
    Stand.HANDED_OVER: "Pending",
    Stand.NOT_PUBLISHED: "Pending",
}


class ClusterPublisher:
    """`look` is one round of it; slices stay in memory, for nobody but its own claims allocates from them."""

    def __init__(self, api: ApiAccess, root: Path, node: str) -> None:
        self._api = api
        self._node = node
        self._host = open_host(root)
        self._state: Object = {}
        self.slices: dict[str, Offer] = {}
        self.publisher = PlayedPublisher(self._host, self.slices, self.claims, report=self._report)
        self.publisher.start()

    def look(self) -> dict[str, Stand]:
        """Do what can be done now, and report it."""
        self._state = self._api.call("GET", f"{STATES}/{self._node}")
        stands = self.publisher.look(NodeStateSpec.model_validate(self._state["spec"]).devices)
        self._tell(stands)
        return stands

    def claims(self) -> set[str]:
        """The devices of this node that claims are allocated to, by address."""
        found = set()
        for claim in self._api.call("GET", CLAIMS)["items"]:
            results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", [])
            found |= {address_of(one["device"]) for one in results if one["pool"] == self._node}
        return {address for address in found if address is not None}

    def _report(self, address: str) -> DeviceState | None:
        bindings = (self._state.get("status") or {}).get("bindings") or {}
        if bindings.get("observedGeneration") != self._state["metadata"]["generation"]:
            return None
        if bindings.get("bootID") != read_boot_id(self._host):
            return None
        found = (one["state"] for one in bindings.get("devices", []) if one["address"] == address)
        return next((DeviceState(state) for state in found), None)

    def _tell(self, stands: dict[str, Stand]) -> None:
        ordered = {entry["address"] for entry in self._state["spec"].get("devices", [])}
        devices = [
            {
                "address": address,
                "state": _STATES[stand],
                "reason": str(stand),
                "message": "a claim is allocated" if stand is Stand.HAND_OVER else "",
            }
            for address, stand in sorted(stands.items())
            if address in ordered
        ]
        report = {
            "observedGeneration": self._state["metadata"]["generation"],
            "bootID": read_boot_id(self._host),
            "devices": devices,
        }
        status = self._state.get("status") or {}
        if status.get("publication") == report:
            return
        try:
            self._api.call(
                "PUT", f"{STATES}/{self._node}/status", {**self._state, "status": {**status, "publication": report}}
            )
        except ApiCallError as error:
            if error.status != 409:  # somebody wrote meanwhile: the next look will do
                raise
