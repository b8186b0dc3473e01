"""Credentials other than the administrator's: our components must be seen to work with their own rights only."""

from __future__ import annotations

import base64
import secrets
import time
from pathlib import Path
from typing import Any

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.access.certificates import Pair, client_pair, signing_request
from cli.cluster.access.kubeconfig import Access, read_kubeconfig, write_kubeconfig
from cli.cluster.errors import ApiCallError, ClusterError
from cli.cluster.run.control_plane import ControlPlane

NODES_GROUP = "system:nodes"
NODE_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SIGNING_SECONDS = 30.0


def service_account_kubeconfig(
    plane: ControlPlane, namespace: str, name: str, out: Path, *, node: str | None = None, seconds: int = 86_400
) -> Path:
    """Write a kubeconfig with a token of this ServiceAccount, valid `seconds` (the server accepts 600 and more).

    With `node` the token is bound to that Node object as a pod's token is to its node: requests carry the extra
    `authentication.kubernetes.io/node-name`, and the token ends with the Node (KEP-4193). Raises ClusterError when the
    account or the node does not exist.
    """
    access = read_kubeconfig(plane.admin_kubeconfig)
    api = ApiAccess(access)
    spec: dict[str, object] = {"expirationSeconds": seconds}
    try:
        if node is not None:
            uid = api.call("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = api.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", request)
    except ApiCallError as error:
        raise ClusterError(f"no token for ServiceAccount {namespace}/{name}: {error}") from error
    token = Access(access.endpoint, token=str(answer["status"]["token"]))
    write_kubeconfig(out, token, user=f"{namespace}-{name}", namespace=namespace)
    return out


def node_kubeconfig(plane: ControlPlane, node_name: str, out: Path) -> Path:
    """Write a kubeconfig with a node's client certificate (user `system:node:<name>`, group `system:nodes`).

    Signed with the plane's own authority; in a cluster that we did not start it is asked for and approved through the
    certificates API. Raises ClusterError when that cluster does not sign within 30 s.
    """
    access = read_kubeconfig(plane.admin_kubeconfig)
    user = f"system:node:{node_name}"
    authority = plane.authority
    if authority is not None:
        pair = client_pair(authority, user, (NODES_GROUP,))
    else:
        pair = signed_by_cluster(ApiAccess(access), user, (NODES_GROUP,), NODE_SIGNER)
    write_kubeconfig(out, Access(access.endpoint, pair), user=user)
    return out


def signed_by_cluster(api: ApiAccess, user: str, groups: tuple[str, ...], signer: str) -> Pair:
    """A client certificate from the cluster's own signer. The request object is removed again."""
    made = signing_request(user, groups)
    requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    name = f"npufleet-{secrets.token_hex(6)}"
    api.call(
        "POST",
        requests,
        {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {
                "request": base64.b64encode(made.certificate).decode(),
                "signerName": signer,
                "usages": ["digital signature", "client auth"],
            },
        },
    )
    try:
        deadline = time.monotonic() + SIGNING_SECONDS
        while True:
            request = api.call("GET", f"{requests}/{name}")
            status = request.get("status", {})
            if status.get("certificate"):
                return Pair(base64.b64decode(status["certificate"]), made.key)
            conditions = status.get("conditions", [])
            failed = [item for item in conditions if item["type"] in ("Failed", "Denied")]
            if not any(item["type"] == "Approved" for item in conditions):
                _approve(api, f"{requests}/{name}", request)
            if failed or time.monotonic() > deadline:
                raise ClusterError(
                    f"the cluster did not sign a certificate for {user} within {SIGNING_SECONDS:.0f} s "
                    f"(signer {signer}): {failed or 'no controller manager with a signing key?'}"
                )
            time.sleep(0.2)
    finally:
        api.call("DELETE", f"{requests}/{name}")


def _approve(api: ApiAccess, path: str, request: dict[str, Any]) -> None:
    approval = {"type": "Approved", "status": "True", "reason": "AskedByAdministrator"}
    status = request.setdefault("status", {})
    status["conditions"] = [*status.get("conditions", []), approval]
    try:
        api.call("PUT", f"{path}/approval", request)
    except ApiCallError as error:
        if error.status != 409:  # the cluster's own approver was faster: the caller reads again
            raise
