"""What containerd, the pods' network and the kubelet of a sandboxed node are told. Pure: no file is written here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.node_runtime.images import PAUSE
from tests.node_runtime.sandbox import ADDRESS, BRIDGE, NETWORK

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CDI_DIRECTORY = "/run/cdi"
KUBELET_DIRECTORY = "/var/lib/kubelet"
POD_LOGS = "/var/log/pods"
HEALTH_PORT = 10248

# The kubelet insists on these and writes them where they differ; it is shown that they do not, so that the machine's
# own settings stay.
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}

_EVICTION_SIGNALS = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
)


def containerd_configuration(*, runc: Path, plugins: Path, network: Path) -> str:
    """`plugins`: the directory of the network's programs; `network`: that of its configuration."""
    runtime = "io.containerd.cri.v1.runtime"
    tables: dict[tuple[str, ...], dict[str, object]] = {
        ("plugins", "io.containerd.server.v1.grpc"): {"address": CONTAINERD_SOCKET},
        ("plugins", "io.containerd.server.v1.ttrpc"): {"address": f"{CONTAINERD_SOCKET}.ttrpc"},
        ("plugins", "io.containerd.cri.v1.images"): {"snapshotter": "overlayfs"},
        ("plugins", "io.containerd.cri.v1.images", "pinned_images"): {"sandbox": PAUSE.name},
        ("plugins", runtime): {
            "cdi_spec_dirs": [CDI_DIRECTORY],
            # Lowering the score takes CAP_SYS_RESOURCE, which even root may lack in a container.
            "restrict_oom_score_adj": True,
            "disable_apparmor": True,
        },
        ("plugins", runtime, "cni"): {"bin_dirs": [str(plugins)], "conf_dir": str(network)},
        ("plugins", runtime, "containerd"): {"default_runtime_name": "runc"},
        ("plugins", runtime, "containerd", "runtimes", "runc"): {"runtime_type": "io.containerd.runc.v2"},
        ("plugins", runtime, "containerd", "runtimes", "runc", "options"): {
            "BinaryName": str(runc),
            "SystemdCgroup": False,
        },
    }
    top = {
        "version": 4,
        "root": "/var/lib/containerd",
        "state": "/run/containerd",
        # What is not needed here and would leave traces on the machine (/opt/containerd) or look for kernel modules.
        "disabled_plugins": [
            "io.containerd.nri.v1.nri",
            "io.containerd.internal.v1.opt",
            "io.containerd.snapshotter.v1.blockfile",
            "io.containerd.snapshotter.v1.erofs",
            "io.containerd.differ.v1.erofs",
        ],
    }
    lines = [_assignment(name, value) for name, value in top.items()]
    for path, values in tables.items():
        lines += ["", f"[{'.'.join(json.dumps(part) for part in path)}]"]
        lines += [_assignment(name, value) for name, value in values.items()]
    return "\n".join(lines) + "\n"


def _assignment(name: str, value: object) -> str:
    # Texts, numbers, booleans and lists of texts look the same in TOML and in JSON.
    return f"{name} = {json.dumps(value)}"


def network_configuration() -> str:
    """A CNI list: pods on the node's bridge, addresses from its network."""
    return json.dumps(
        {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": BRIDGE,
                    "isGateway": True,
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": NETWORK}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        },
        indent=1,
    )


def kubelet_configuration() -> str:
    """A kubelet that takes the machine as it is: swap, disks and kernel settings are nobody's business here."""
    configuration: dict[str, object] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "healthzPort": HEALTH_PORT,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": ["pods"],
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        "resolvConf": "",
        "staticPodPath": "",
        "volumePluginDir": f"{KUBELET_DIRECTORY}/volume-plugins",
        "podLogsDir": POD_LOGS,
        "evictionHard": dict.fromkeys(_EVICTION_SIGNALS, "0%"),
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "5s",
        # How soon a pod whose devices could not be prepared is tried again; a minute by default.
        "syncFrequency": "3s",
        "enableDebuggingHandlers": False,
    }
    return yaml.safe_dump(configuration, sort_keys=False)


def kubelet_flags(*, name: str, kubeconfig: Path, configuration: Path, labels: Mapping[str, str]) -> list[str]:
    options: dict[str, object] = {
        "config": configuration,
        "kubeconfig": kubeconfig,
        "root-dir": KUBELET_DIRECTORY,
        "cert-dir": f"{KUBELET_DIRECTORY}/pki",
        "hostname-override": name,
        "node-ip": ADDRESS,
        "node-labels": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        "v": 2,
    }
    return [f"--{key}={value}" for key, value in options.items()]
