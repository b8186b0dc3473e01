"""Which pod a process is of, from its cgroup: the kubelet puts the pod's UID into the name of the pod's cgroup.

Cgroup v1 (a line for each hierarchy) and v2 (one line), named by either driver: `kubepods/burstable/pod<uid>`
(cgroupfs), `kubepods-burstable-pod<uid with _ for ->.slice` (systemd). A kubelet below another cgroup (kind, or
--cgroup-root) has more before that. The UID of a static pod is a hash, 32 hex digits; its mirror pod has it in the
annotation `kubernetes.io/config.hash`.
Sources: proc_pid_cgroup(5); kubelet pkg/kubelet/cm (pod_container_manager_linux.go, cgroup_manager_linux.go).
"""

import re

from node_host.host import Host

_UID = r"[0-9a-f]{8}(?P<dash>[-_])[0-9a-f]{4}(?P=dash)[0-9a-f]{4}(?P=dash)[0-9a-f]{4}(?P=dash)[0-9a-f]{12}"
# A reader in a cgroup namespace of its own may see the pod's part of the name alone.
_SYSTEMD = r"(?:[^/]+-)?kubepods-(?:(?:burstable|besteffort)-)?"
_POD = re.compile(rf"(?:{_SYSTEMD})?pod(?P<uid>{_UID}|[0-9a-f]{{32}})(?:\.slice)?")


def read_pod_uid(host: Host, pid: int) -> str | None:
    """The UID of the process's pod; None for a process of the host, and where the kernel does not say."""
    try:
        text = host.read(f"/proc/{pid}/cgroup").decode("utf-8", "replace")
    except OSError:
        return None
    return pod_uid(text)


def pod_uid(cgroups: str) -> str | None:
    """The UID in the text of a /proc/<pid>/cgroup; None without one, and where hierarchies name different pods."""
    found = {uid for line in cgroups.splitlines() if (uid := _of_path(line.partition(":")[2].partition(":")[2]))}
    return found.pop() if len(found) == 1 else None


def _of_path(path: str) -> str | None:
    """The outermost pod: a cluster that runs inside a pod has pods of its own, which this node's API does not know."""
    for name in path.split("/"):
        match = _POD.fullmatch(name)
        if match is not None:
            return match["uid"].replace("_", "-")
    return None
