"""The identities of one control plane: which certificates and kubeconfigs exist and whom they name."""

from __future__ import annotations

from pathlib import Path

from cli.cluster.access.certificates import (
    Authority,
    Pair,
    authority_at,
    client_pair,
    load_authority,
    server_pair,
    signing_key_at,
    write_pair,
)
from cli.cluster.access.kubeconfig import Access, ClusterEndpoint, write_kubeconfig
from cli.cluster.errors import ClusterError
from cli.cluster.run.components import CONTROLLER_MANAGER, HOST, SCHEDULER, SERVING_HOSTS
from cli.cluster.run.layout import Layout

# User and groups by component (the names that Kubernetes' built-in roles are bound to).
ADMIN = "npufleet-admin"
CLIENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    ADMIN: (ADMIN, ("system:masters",)),
    CONTROLLER_MANAGER: ("system:kube-controller-manager", ()),
    SCHEDULER: ("system:kube-scheduler", ()),
}


def write_pki(layout: Layout) -> None:
    """Authorities and the service account key are kept from an earlier start of the same directory, so that credentials
    given out then stay valid; everything signed by them is made anew."""
    authority = authority_at(_authority(layout, "crt"), _authority(layout, "key"), "npufleet local cluster")
    etcd_authority = authority_at(layout.pki / "etcd-ca.crt", layout.pki / "etcd-ca.key", "npufleet local etcd")
    signing_key_at(layout.pki / "service-accounts.key", layout.pki / "service-accounts.pub")
    _write(layout, "serving", server_pair(authority, "kube-apiserver", SERVING_HOSTS))
    # etcd presents its serving certificate as a client, too (to itself, as a peer).
    _write(layout, "etcd-server", server_pair(etcd_authority, "etcd", (HOST, "localhost"), also_client=True))
    _write(layout, "etcd-client", client_pair(etcd_authority, "kube-apiserver"))


def write_kubeconfigs(layout: Layout, url: str) -> None:
    """The administrator's kubeconfig and those of the components, for the server at `url`."""
    authority = cluster_authority(layout)
    for name, (user, groups) in CLIENTS.items():
        path = layout.admin_kubeconfig if name == ADMIN else layout.kubeconfig(name)
        access = Access(ClusterEndpoint(url, authority.pem), client_pair(authority, user, groups))
        write_kubeconfig(path, access, user=user)


def cluster_authority(layout: Layout) -> Authority:
    """The authority that the API server trusts for client certificates. Raises ClusterError when it is gone."""
    authority = load_authority(_authority(layout, "crt"), _authority(layout, "key"))
    if authority is None:
        raise ClusterError(f"{layout.pki} holds no usable authority: `npufleet cluster down`, then up")
    return authority


def etcd_access(layout: Layout, url: str) -> Access:
    """How the plane itself asks etcd whether it is ready."""
    try:
        pair = Pair((layout.pki / "etcd-client.crt").read_bytes(), (layout.pki / "etcd-client.key").read_bytes())
        return Access(ClusterEndpoint(url, (layout.pki / "etcd-ca.crt").read_bytes()), pair)
    except OSError as error:
        raise ClusterError(f"{error.filename}: {error.strerror}; `npufleet cluster down`, then up") from error


def admin_access(layout: Layout, url: str) -> Access:
    """A fresh administrator certificate, for asking any of the Kubernetes components."""
    authority = cluster_authority(layout)
    return Access(ClusterEndpoint(url, authority.pem), client_pair(authority, *CLIENTS[ADMIN]))


def _authority(layout: Layout, kind: str) -> Path:
    return layout.pki / f"ca.{kind}"


def _write(layout: Layout, name: str, pair: Pair) -> None:
    write_pair(pair, layout.pki / f"{name}.crt", layout.pki / f"{name}.key")
