"""The local control plane is a real one, its identities have exactly their rights, and nothing of it is left behind."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.access.identities import node_kubeconfig, service_account_kubeconfig, signed_by_cluster
from cli.cluster.access.kubeconfig import Access, read_kubeconfig
from cli.cluster.errors import ApiCallError, ClusterError
from cli.cluster.programs.binaries import HACK, KUBERNETES_MODULE, ensure_binaries, required_version
from cli.cluster.run import ports
from cli.cluster.run.components import API_SERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER
from cli.cluster.run.control_plane import ControlPlane

ROOT = Path(__file__).parents[2]
Kubectl = Callable[..., subprocess.CompletedProcess[str]]


def eventually(true: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


def gone(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


@pytest.fixture
def name() -> str:
    """A name that no other test has used on this cluster."""
    return f"plane-{secrets.token_hex(4)}"


@pytest.fixture
def node(kubectl: Kubectl, name: str) -> Iterator[str]:
    kubectl("create", "-f", "-", input=json.dumps(node_object(name)))
    yield name
    kubectl("delete", "node", name, "--ignore-not-found")


@pytest.fixture
def namespace(kubectl: Kubectl, name: str) -> Iterator[str]:
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def node_object(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


class TestSharedPlane:
    """On the plane of the session."""

    def test_serves_the_version_that_the_repository_pins(self, control_plane: ControlPlane, kubectl: Kubectl) -> None:
        server = json.loads(kubectl("version", "-o", "json").stdout)["serverVersion"]
        pinned = required_version((HACK / "kubernetes/go.mod").read_text(), KUBERNETES_MODULE)
        assert server["gitVersion"].startswith("v1.")
        if control_plane.running():  # a cluster that was given to us may be of any version
            assert (server["gitVersion"], server["major"], server["minor"]) == (pinned, "1", pinned.split(".")[1])

    def test_schedules_a_pod_at_once(self, kubectl: Kubectl, namespace: str, node: str) -> None:
        """The namespace's ServiceAccount, the scheduler and RBAC must all work for that."""
        status = {"status": {"capacity": {"pods": "9", "cpu": "4"}, "allocatable": {"pods": "9", "cpu": "4"}}}
        kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(status))
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": namespace},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "c", "image": "example.org/nothing"}],
            },
        }
        kubectl("label", "node", node, f"kubernetes.io/hostname={node}")
        account = ("get", "serviceaccount", "default", "-n", namespace)
        eventually(lambda: kubectl(*account, check=False).returncode == 0, "the namespace has its ServiceAccount")
        kubectl("create", "-f", "-", input=json.dumps(pod))
        query = ("get", "pod", "p", "-n", namespace, "-o", "jsonpath={.spec.nodeName}")
        eventually(lambda: kubectl(*query).stdout == node, "the pod is on its node")

    def test_token_bound_to_a_node_names_that_node(
        self, control_plane: ControlPlane, kubectl: Kubectl, namespace: str, node: str, tmp_path: Path
    ) -> None:
        kubectl("create", "serviceaccount", "binder", "-n", namespace)
        config = service_account_kubeconfig(control_plane, namespace, "binder", tmp_path / "binder", node=node)
        me = json.loads(kubectl("auth", "whoami", "-o", "json", kubeconfig=config).stdout)["status"]["userInfo"]
        assert me["username"] == f"system:serviceaccount:{namespace}:binder"
        assert me["extra"]["authentication.kubernetes.io/node-name"] == [node]
        uid = kubectl("get", "node", node, "-o", "jsonpath={.metadata.uid}").stdout
        assert me["extra"]["authentication.kubernetes.io/node-uid"] == [uid]
        assert config.stat().st_mode & 0o077 == 0

    def test_unbound_token_names_no_node_and_has_no_rights(
        self, control_plane: ControlPlane, kubectl: Kubectl, namespace: str, tmp_path: Path
    ) -> None:
        kubectl("create", "serviceaccount", "plain", "-n", namespace)
        config = service_account_kubeconfig(control_plane, namespace, "plain", tmp_path / "plain")
        me = json.loads(kubectl("auth", "whoami", "-o", "json", kubeconfig=config).stdout)["status"]["userInfo"]
        assert not [key for key in me["extra"] if "node" in key]
        refused = kubectl("get", "nodes", kubeconfig=config, check=False)
        assert refused.returncode != 0
        assert "Forbidden" in refused.stderr

    def test_token_of_an_absent_account_or_node_is_one_clear_error(
        self, control_plane: ControlPlane, kubectl: Kubectl, namespace: str, tmp_path: Path
    ) -> None:
        out = tmp_path / "config"
        with pytest.raises(ClusterError, match=rf'{namespace}/absent: .* serviceaccounts "absent" not found'):
            service_account_kubeconfig(control_plane, namespace, "absent", out)
        kubectl("create", "serviceaccount", "there", "-n", namespace)
        with pytest.raises(ClusterError, match='nodes "no-such-node" not found'):
            service_account_kubeconfig(control_plane, namespace, "there", out, node="no-such-node")
        assert not out.exists()

    def test_node_certificate_may_change_its_own_node_only(
        self, control_plane: ControlPlane, kubectl: Kubectl, node: str, name: str, tmp_path: Path
    ) -> None:
        own = f"{name}-own"
        config = node_kubeconfig(control_plane, own, tmp_path / "node")
        try:
            kubectl("create", "-f", "-", input=json.dumps(node_object(own)), kubeconfig=config)  # as a kubelet does
            kubectl("annotate", "node", own, "example.org/mine=yes", kubeconfig=config)
            other = kubectl("annotate", "node", node, "example.org/mine=yes", kubeconfig=config, check=False)
            assert other.returncode != 0
            assert "Forbidden" in other.stderr
            taint = kubectl("label", "node", own, "node-restriction.kubernetes.io/x=y", kubeconfig=config, check=False)
            assert taint.returncode != 0, "the admission plug-in NodeRestriction must be on"
            assert "node-restriction.kubernetes.io/x" in taint.stderr
        finally:
            kubectl("delete", "node", own, "--ignore-not-found")

    def test_node_certificate_is_also_had_from_a_cluster_that_is_not_ours(
        self, control_plane: ControlPlane, kubectl: Kubectl, name: str, tmp_path: Path
    ) -> None:
        foreign = ControlPlane.existing(control_plane.admin_kubeconfig, tmp_path)
        assert foreign.authority is None
        assert foreign.running() == {}
        config = node_kubeconfig(foreign, name, tmp_path / "node")
        me = json.loads(kubectl("auth", "whoami", "-o", "json", kubeconfig=config).stdout)["status"]["userInfo"]
        assert me["username"] == f"system:node:{name}"
        assert "system:nodes" in me["groups"]
        left = kubectl("get", "certificatesigningrequests", "-o", "name").stdout
        assert "npufleet-" not in left
        foreign.stop()
        assert kubectl("get", "--raw", "/readyz").stdout == "ok"

    def test_signer_that_refuses_is_one_clear_error(self, control_plane: ControlPlane) -> None:
        """The kubelet signer takes node names only; anything else is not signed."""
        with pytest.raises(ClusterError, match=r"did not sign a certificate for somebody .*Failed"):
            signed_by_cluster(control_plane.api(), "somebody", (), "kubernetes.io/kube-apiserver-client-kubelet")

    def test_audit_log_proves_who_wrote_what_and_holds_no_secret(
        self, control_plane: ControlPlane, kubectl: Kubectl, namespace: str
    ) -> None:
        if control_plane.audit_log is None:
            assert os.environ.get("NPUFLEET_TEST_KUBECONFIG"), "a plane of ours has an audit log"
            return
        word = f"word-{secrets.token_hex(8)}"
        kubectl("create", "configmap", "seen", f"--from-literal=a={word}-open", "-n", namespace)
        kubectl("create", "secret", "generic", "hidden", f"--from-literal=a={word}-secret", "-n", namespace)
        text = control_plane.audit_log.read_text()
        events = [json.loads(line) for line in text.splitlines() if namespace in line]
        writes = {
            event["objectRef"]["name"]: event
            for event in events
            if event["verb"] == "create" and event["objectRef"].get("name") in ("seen", "hidden")
        }
        assert writes["seen"]["user"]["groups"][0] == "system:masters"
        assert writes["seen"]["requestObject"]["data"] == {"a": f"{word}-open"}
        assert writes["hidden"]["level"] == "Metadata"
        assert "requestObject" not in writes["hidden"]

    def test_database_is_closed_to_kubernetes_identities(self, control_plane: ControlPlane, tmp_path: Path) -> None:
        """A node's certificate that opened etcd would be an administrator's."""
        if not control_plane.running():
            assert os.environ.get("NPUFLEET_TEST_KUBECONFIG"), "a plane of ours has processes"
            return
        state = json.loads((control_plane.directory / "npufleet-cluster.json").read_text())
        etcd = f"https://127.0.0.1:{state['ports']['etcd']}"
        node = read_kubeconfig(node_kubeconfig(control_plane, "intruder", tmp_path / "node"))
        authority = (control_plane.directory / "pki/etcd-ca.crt").read_bytes()
        endpoint = type(node.endpoint)(etcd, authority)
        with pytest.raises(ClusterError, match="no answer"):
            ApiAccess(Access(endpoint, node.client)).call("GET", "/readyz")
        with pytest.raises(ClusterError, match="no answer"):
            ApiAccess(Access(endpoint, token="none")).call("GET", "/readyz")


class TestOwnPlane:
    """Planes of their own, of etcd and API server alone: seconds each."""

    def test_stop_leaves_no_process_and_a_second_start_finds_the_data(self, tmp_path: Path) -> None:
        with ControlPlane.start(tmp_path / "p", components=()) as plane:
            first_url, pids = plane.url, plane.running()
            assert pids.keys() == {ETCD, API_SERVER}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}}
            plane.api().call("POST", "/api/v1/namespaces/default/configmaps", body)
            with pytest.raises(ClusterError, match="in use by process"):
                ControlPlane.start(tmp_path / "p", components=())
            refused = cluster("down", "--directory", str(tmp_path / "p"))
            assert (refused.returncode, "is in use by process" in refused.stderr) == (3, True)
            assert plane.running() == pids, "whoever was refused must not touch the running plane"
        assert plane.running() == {}
        assert all(gone(pid) for pid in pids.values())
        plane.stop()  # may be called again
        with ControlPlane.start(tmp_path / "p", components=()) as plane:
            assert plane.url == first_url
            plane.api().call("GET", "/api/v1/namespaces/default/configmaps/kept")

    def test_port_taken_in_between_is_replaced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another process grabs the port after it was picked and before the component listens."""
        real = ports.free_port
        with socket.create_server(("127.0.0.1", 0)) as rival:
            taken = int(rival.getsockname()[1])
            given: list[int] = []

            def pick() -> int:
                # etcd's client port, then (after etcd's two new ones) the API server's: each loses the race once
                given.append(taken if len(given) in (0, 4) else real())
                return given[-1]

            monkeypatch.setattr(ports, "free_port", pick)
            with ControlPlane.start(tmp_path, components=()) as plane:
                assert len(given) == 6
                assert given[4] == taken
                assert plane.url == f"https://127.0.0.1:{given[5]}"
                plane.api().call("GET", "/readyz")

    def test_stopped_component_comes_back_at_its_address(self, tmp_path: Path) -> None:
        with ControlPlane.start(tmp_path, components=()) as plane:
            url, before = plane.url, plane.running()
            plane.stop_component(API_SERVER)
            assert plane.running().keys() == {ETCD}
            with pytest.raises(ClusterError, match="no answer"):
                plane.api().call("GET", "/readyz", timeout=2)
            plane.start_component(API_SERVER)
            assert plane.url == url
            plane.api().call("GET", "/readyz")
            assert plane.running()[ETCD] == before[ETCD]
            assert plane.running()[API_SERVER] != before[API_SERVER]

    def test_component_that_fails_shows_its_log_and_takes_the_others_down(self, tmp_path: Path) -> None:
        bin_dir = tmp_path / "bin"
        bin_dir.mkdir()
        (bin_dir / ETCD).symlink_to(ensure_binaries([ETCD])[ETCD])
        broken = bin_dir / API_SERVER
        broken.write_text("#!/bin/sh\necho 'invalid flag: --frobnicate' >&2\nexit 7\n")
        broken.chmod(0o755)
        with pytest.raises(ClusterError, match=r"kube-apiserver ended .*exit code 7") as failed:
            ControlPlane.start(tmp_path / "p", components=(), bin_dir=bin_dir)
        assert "invalid flag: --frobnicate" in str(failed.value)
        mine = os.fsencode(tmp_path)
        assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if mine in _read(path)]

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_nothing_outlives_a_starter_that_is_ended(self, tmp_path: Path, number: signal.Signals) -> None:
        script = (
            "import json, sys, threading; from pathlib import Path\n"
            "from cli.cluster.run.control_plane import ControlPlane\n"
            "plane = ControlPlane.start(Path(sys.argv[1]), components=())\n"
            "print(json.dumps(plane.running()), flush=True); threading.Event().wait()"
        )
        starter = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert starter.stdout is not None
        with starter.stdout as said:
            pids = json.loads(said.readline())
        assert pids.keys() == {ETCD, API_SERVER}
        starter.send_signal(number)
        starter.wait(10)
        eventually(lambda: all(gone(pid) for pid in pids.values()), "the components have ended, too", 20)


class TestCommand:
    """`npufleet cluster`, as a person uses it."""

    def test_up_stays_is_found_and_goes(self, tmp_path: Path) -> None:
        directory = str(tmp_path / "it's here")  # what is printed for the shell must survive this
        try:
            up = cluster("up", "--no-controllers", "--audit", "--directory", directory)
            assert up.returncode == 0, up.stderr
            shell = f'{up.stdout}\nprintf %s "$KUBECONFIG"'
            config = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout
            assert cluster("kubeconfig", "--directory", directory).stdout == f"{config}\n"
            api = ApiAccess(read_kubeconfig(Path(config)))
            assert api.call("GET", "/readyz") == "ok"
            before = pids(directory)
            assert before.keys() == {ETCD, API_SERVER}

            again = cluster("up", "--directory", directory)  # adds what was left out, leaves the rest
            assert again.returncode == 0, again.stderr
            after = pids(directory)
            assert after.keys() == {ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER}
            assert before.items() <= after.items()

            os.kill(after[API_SERVER], signal.SIGKILL)
            eventually(lambda: gone(after[API_SERVER]), "the API server is dead")
            dead = cluster("kubeconfig", "--directory", directory)
            assert dead.returncode == 3
            assert "kube-apiserver not running" in dead.stderr
            healed = cluster("up", "--directory", directory)
            assert healed.returncode == 0, healed.stderr
            assert api.call("GET", "/readyz") == "ok", "credentials and address given out before are still good"
            last = pids(directory)
        finally:
            down = cluster("down", "--directory", directory)
        assert down.returncode == 0, down.stderr
        assert all(gone(pid) for pid in last.values())
        assert not Path(config).exists()
        assert sorted(path.name for path in (Path(directory) / "logs").glob("*.log"))[0] == "etcd.log"
        assert cluster("kubeconfig", "--directory", directory).returncode == 3

    def test_terminated_up_stops_what_it_has_started(self, tmp_path: Path) -> None:
        bin_dir = tmp_path / "bin"
        bin_dir.mkdir()
        (bin_dir / ETCD).symlink_to(ensure_binaries([ETCD])[ETCD])
        slow = bin_dir / API_SERVER
        slow.write_text(f"#!/bin/sh\ntouch '{tmp_path}/reached'\nexec sleep 600\n")
        slow.chmod(0o755)
        options = ["--no-controllers", "--bin-dir", str(bin_dir), "--directory", str(tmp_path / "p")]
        up = subprocess.Popen(
            [sys.executable, "-m", "cli.main", "cluster", "up", *options],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually((tmp_path / "reached").exists, "the second component has been started")
        running = pids(str(tmp_path / "p"))
        assert running.keys() == {ETCD, API_SERVER}
        up.terminate()
        assert up.wait(60) == 128 + signal.SIGTERM
        assert all(gone(pid) for pid in running.values())


def cluster(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", "cluster", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def pids(directory: str) -> dict[str, int]:
    records = (Path(directory) / "run").glob("*.json")
    return {path.stem: json.loads(path.read_text())["pid"] for path in records}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_error_status_keeps_its_code(control_plane: ControlPlane) -> None:
    with pytest.raises(ApiCallError) as failed:
        control_plane.api().call("GET", "/api/v1/namespaces/no-such-namespace")
    assert failed.value.status == 404
