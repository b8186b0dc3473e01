"""What each component of the control plane is started with and how it says that it is ready. Pure: no process here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from cli.cluster.run.layout import Layout

ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"

HOST = "127.0.0.1"
SERVICE_RANGE = "10.96.0.0/24"
SERVING_HOSTS = (
    HOST,
    "localhost",
    "10.96.0.1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
ISSUER = "https://kubernetes.default.svc.cluster.local"


@dataclass(frozen=True, slots=True)
class Plan:
    """What the components must know of each other. `ports` by port name: etcd, etcd-peer and the other components'."""

    layout: Layout
    ports: Mapping[str, int]
    audit: bool

    def pki(self, name: str) -> Path:
        return self.layout.pki / name

    def url(self, port_name: str) -> str:
        return f"https://{HOST}:{self.ports[port_name]}"


@dataclass(frozen=True, slots=True)
class Component:
    """`ready_path` is asked over HTTPS on the first of `port_names`; `ready_seconds` is generous, for machines that
    compile meanwhile; `stop_seconds` is the time between SIGTERM and SIGKILL."""

    name: str
    port_names: tuple[str, ...]
    arguments: Callable[[Plan], list[str]]
    ready_path: str
    ready_seconds: float
    stop_seconds: float


def etcd_arguments(plan: Plan) -> list[str]:
    client, peer = plan.url("etcd"), plan.url("etcd-peer")
    options = {
        "name": "npufleet",
        "data-dir": plan.layout.data,
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"npufleet={peer}",
        # A local cluster survives the end of its processes, not a power cut; in exchange writes do not wait for disks.
        "unsafe-no-fsync": "true",
        "log-level": "warn",
    }
    for prefix in ("", "peer-"):
        options |= {
            f"{prefix}cert-file": plan.pki("etcd-server.crt"),
            f"{prefix}key-file": plan.pki("etcd-server.key"),
            f"{prefix}trusted-ca-file": plan.pki("etcd-ca.crt"),
            f"{prefix}client-cert-auth": "true",
        }
    return _flags(options)


def api_server_arguments(plan: Plan) -> list[str]:
    options: dict[str, object] = {
        "etcd-servers": plan.url("etcd"),
        "etcd-cafile": plan.pki("etcd-ca.crt"),
        "etcd-certfile": plan.pki("etcd-client.crt"),
        "etcd-keyfile": plan.pki("etcd-client.key"),
        "bind-address": HOST,
        # Given, because the server otherwise looks for a network interface with a default route: there may be none.
        "advertise-address": HOST,
        "endpoint-reconciler-type": "none",
        "secure-port": plan.ports[API_SERVER],
        "tls-cert-file": plan.pki("serving.crt"),
        "tls-private-key-file": plan.pki("serving.key"),
        "client-ca-file": plan.pki("ca.crt"),
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "service-cluster-ip-range": SERVICE_RANGE,
        "service-account-issuer": ISSUER,
        "service-account-key-file": plan.pki("service-accounts.pub"),
        "service-account-signing-key-file": plan.pki("service-accounts.key"),
        "allow-privileged": "true",
        "profiling": "false",
    }
    if plan.audit:
        options |= {
            "audit-policy-file": plan.layout.configuration / "audit-policy.yaml",
            "audit-log-path": plan.layout.audit_log,
            "audit-log-maxsize": 0,  # one file: whoever reads it while it grows must not lose it to a rotation
        }
    return _flags(options)


def controller_manager_arguments(plan: Plan) -> list[str]:
    return _flags(
        {
            **_client_options(plan, CONTROLLER_MANAGER),
            "kubeconfig": plan.layout.kubeconfig(CONTROLLER_MANAGER),
            "leader-elect": "false",
            "service-account-private-key-file": plan.pki("service-accounts.key"),
            "root-ca-file": plan.pki("ca.crt"),
            "cluster-signing-cert-file": plan.pki("ca.crt"),
            "cluster-signing-key-file": plan.pki("ca.key"),
            # Each controller under its own identity and rights, as in a real cluster.
            "use-service-account-credentials": "true",
            "kube-api-qps": 200,
            "kube-api-burst": 400,
            "profiling": "false",
        }
    )


def scheduler_arguments(plan: Plan) -> list[str]:
    return _flags({**_client_options(plan, SCHEDULER), "config": plan.layout.configuration / "scheduler.yaml"})


def scheduler_configuration(layout: Layout) -> str:
    """Short back-off: on one machine a pod that can now be placed should be, without the usual wait of up to 10 s."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(layout.kubeconfig(SCHEDULER)), "qps": 200, "burst": 400},
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 2,
            "enableProfiling": False,
        },
        sort_keys=False,
    )


def _client_options(plan: Plan, component: str) -> dict[str, object]:
    kubeconfig = plan.layout.kubeconfig(component)
    return {
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "bind-address": HOST,
        "secure-port": plan.ports[component],
        "tls-cert-file": plan.pki("serving.crt"),
        "tls-private-key-file": plan.pki("serving.key"),
    }


def _flags(options: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


# In the order of starting; stopping goes the other way, because an API server without its etcd hangs for minutes.
COMPONENTS = {
    component.name: component
    for component in (
        Component(ETCD, ("etcd", "etcd-peer"), etcd_arguments, "/readyz", 60, 10),
        Component(API_SERVER, (API_SERVER,), api_server_arguments, "/readyz", 180, 10),
        Component(CONTROLLER_MANAGER, (CONTROLLER_MANAGER,), controller_manager_arguments, "/healthz", 120, 5),
        Component(SCHEDULER, (SCHEDULER,), scheduler_arguments, "/readyz", 120, 5),
    )
}
