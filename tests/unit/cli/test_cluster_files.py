"""Keys, kubeconfigs and the directory of a plane: what is written is private, whole and accepted again.

What is not ours is never touched."""

from __future__ import annotations

import ssl
import stat
import warnings
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.access.certificates import authority_at, client_pair, load_authority, server_pair, signing_key_at
from cli.cluster.access.kubeconfig import Access, ClusterEndpoint, read_kubeconfig, write_kubeconfig
from cli.cluster.access.pki import write_kubeconfigs, write_pki
from cli.cluster.errors import ClusterError
from cli.cluster.files import tail, write_private
from cli.cluster.run.audit_policy import audit_policy
from cli.cluster.run.components import COMPONENTS, Plan
from cli.cluster.run.layout import Layout

URL = "https://127.0.0.1:6443"


def test_private_file_is_readable_by_its_owner_only_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key"
    write_private(path, b"old")
    write_private(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["key"]


def test_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_private(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_private(path, "\udc00")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_tail_shows_the_end_and_explains_when_there_is_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\n\xff three\n")
    assert tail(log, 2) == "two\n\ufffd three"
    assert tail(log, offset=8).endswith("three")
    assert "two" not in tail(log, offset=8)
    log.write_bytes(b"")
    assert tail(log) == f"({log} is empty)"
    assert "cannot be read: No such file" in tail(tmp_path / "absent")


def test_authority_is_kept_and_a_damaged_or_foreign_one_is_made_anew(tmp_path: Path) -> None:
    certificate, key = tmp_path / "ca.crt", tmp_path / "ca.key"
    first = authority_at(certificate, key, "one")
    assert authority_at(certificate, key, "one").pem == first.pem
    authority_at(tmp_path / "other.crt", tmp_path / "other.key", "two")
    key.write_bytes((tmp_path / "other.key").read_bytes())  # as after a death between the two writes
    assert load_authority(certificate, key) is None
    second = authority_at(certificate, key, "one")
    assert second.pem != first.pem
    certificate.write_bytes(b"-----BEGIN CERTIFICATE-----\n")
    third = authority_at(certificate, key, "one")
    loaded = load_authority(certificate, key)
    assert loaded is not None
    assert loaded.pem == third.pem


def test_client_certificate_names_user_and_groups_even_when_long(tmp_path: Path) -> None:
    authority = authority_at(tmp_path / "ca.crt", tmp_path / "ca.key", "ca")
    user = "system:node:" + "n" * 253
    pair = client_pair(authority, user, ("system:nodes", "second"))
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    certificate.verify_directly_issued_by(authority.certificate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the library, on names over 64 characters
        names = [(item.oid.dotted_string, item.value) for item in certificate.subject]
    assert names == [("2.5.4.10", "system:nodes"), ("2.5.4.10", "second"), ("2.5.4.3", user)]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [item.dotted_string for item in usage] == ["1.3.6.1.5.5.7.3.2"]  # client authentication, nothing else


def test_serving_certificate_is_valid_for_names_and_addresses(tmp_path: Path) -> None:
    authority = authority_at(tmp_path / "ca.crt", tmp_path / "ca.key", "ca")
    pair = server_pair(authority, "server", ("127.0.0.1", "localhost"))
    names = (
        x509.load_pem_x509_certificate(pair.certificate)
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    )
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]


def test_second_start_keeps_what_was_given_out(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "plane")
    layout.prepare()
    write_pki(layout)
    kept = ["ca.crt", "ca.key", "etcd-ca.crt", "service-accounts.key", "service-accounts.pub"]
    before = {name: (layout.pki / name).read_bytes() for name in kept}
    write_pki(layout)
    assert {name: (layout.pki / name).read_bytes() for name in kept} == before


def test_damaged_service_account_key_is_made_anew(tmp_path: Path) -> None:
    private, public = tmp_path / "sa.key", tmp_path / "sa.pub"
    private.write_text("nonsense")
    signing_key_at(private, public)
    first = private.read_bytes()
    assert b"PRIVATE KEY" in first
    signing_key_at(private, public)
    assert private.read_bytes() == first


def test_kubeconfigs_come_back_as_written_and_work_as_tls_credentials(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "plane")
    layout.prepare()
    write_pki(layout)
    write_kubeconfigs(layout, URL)
    access = read_kubeconfig(layout.admin_kubeconfig)
    assert access.endpoint.server == URL
    assert access.endpoint.authority == (layout.pki / "ca.crt").read_bytes()
    assert access.client is not None
    assert x509.load_pem_x509_certificate(access.client.certificate).subject.rfc4514_string() == (
        "CN=npufleet-admin,O=system:masters"
    )
    ApiAccess(access)  # loads the pair into a TLS context
    assert stat.S_IMODE(layout.admin_kubeconfig.stat().st_mode) == 0o600


def test_kubeconfig_with_relative_files_and_a_token_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("the authority")
    (tmp_path / "token").write_text("secret\n")
    path = tmp_path / "config"
    content = {
        "current-context": "b",
        "clusters": [{"name": "c", "cluster": {"server": URL, "certificate-authority": "ca.pem"}}],
        "users": [{"name": "u", "user": {"tokenFile": "token"}}],
        "contexts": [
            {"name": "a", "context": {"cluster": "x", "user": "x"}},
            {"name": "b", "context": {"cluster": "c", "user": "u"}},
        ],
    }
    path.write_text(yaml.safe_dump(content))
    assert read_kubeconfig(path) == Access(ClusterEndpoint(URL, b"the authority"), token="secret")


def _config(user: dict[str, str]) -> str:
    return yaml.safe_dump(
        {
            "current-context": "a",
            "clusters": [{"name": "c", "cluster": {"server": URL}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
        }
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "incomplete or damaged"),
        ("[]", "incomplete or damaged"),
        ("a: [", "is not YAML"),
        ("current-context: x\ncontexts: []\n", "incomplete or damaged"),
        ("current-context: x\ncontexts: null\n", "incomplete or damaged"),
        (_config({"client-certificate-data": "%%", "client-key-data": "x"}), "incomplete or damaged"),
        (_config({"client-certificate": "absent.pem", "client-key": "absent.pem"}), "absent.pem, named in kubeconfig"),
        (_config({"exec": "aws"}), "neither a client certificate nor a token"),
    ],
)
def test_unusable_kubeconfig_is_one_clear_error(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ClusterError, match=said) as refused:
        read_kubeconfig(path)
    assert str(path) in str(refused.value)


def test_absent_kubeconfig_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="absent cannot be read: No such file"):
        read_kubeconfig(tmp_path / "absent")


@pytest.mark.parametrize(
    "access",
    [
        Access(ClusterEndpoint(URL, b"no certificate"), token="t"),
        Access(ClusterEndpoint(URL, b""), token="t"),
        Access(ClusterEndpoint("http://127.0.0.1:80", None), token="t"),
        Access(ClusterEndpoint("nonsense", None), token="t"),
    ],
)
def test_unusable_access_is_one_clear_error(access: Access) -> None:
    with pytest.raises(ClusterError):
        ApiAccess(access)


def test_server_that_does_not_answer_is_one_clear_error(tmp_path: Path) -> None:
    config = tmp_path / "config"
    write_kubeconfig(config, Access(ClusterEndpoint("https://127.0.0.1:1", None), token="t"), user="u")
    with pytest.raises(ClusterError, match=r"https://127\.0\.0\.1:1/version: no answer .*refused"):
        ApiAccess(read_kubeconfig(config)).call("GET", "/version", timeout=2)


def test_tls_name_of_a_kubeconfig_is_what_the_certificate_is_checked_against(tmp_path: Path) -> None:
    config = tmp_path / "config"
    endpoint = ClusterEndpoint(URL, None, server_name="kubernetes.default", verify=False)
    write_kubeconfig(config, Access(endpoint, token="t"), user="u", namespace="here")
    assert read_kubeconfig(config).endpoint == endpoint
    assert yaml.safe_load(config.read_text())["contexts"][0]["context"]["namespace"] == "here"


def test_directory_of_something_else_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir()
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ClusterError, match=r"holds other files \(pki, thesis\.tex\)"):
        Layout(tmp_path).prepare()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["pki", "thesis.tex"]


def test_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="cannot be used"):
        Layout(tmp_path / "file").prepare()


def test_removed_cluster_leaves_logs_and_can_be_started_again(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "plane")
    layout.prepare()
    layout.save_state({"ports": {"etcd": 1}, "audit": True})
    write_pki(layout)
    write_kubeconfigs(layout, URL)
    layout.data.mkdir()
    layout.log("etcd").write_text("what happened")
    layout.remove_cluster()
    assert sorted(entry.name for entry in layout.directory.iterdir()) == ["logs", "npufleet-cluster.json"]
    assert layout.log("etcd").exists()
    layout.prepare()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 99}', "null"])
def test_damaged_marker_counts_as_no_state_but_still_marks_the_directory(tmp_path: Path, content: str) -> None:
    layout = Layout(tmp_path)
    layout.prepare()
    layout.marker.write_text(content)
    assert layout.state() is None
    layout.prepare()


def test_arguments_hold_what_the_design_asks_of_the_api_server(tmp_path: Path) -> None:
    ports = {"etcd": 1, "etcd-peer": 2, "kube-apiserver": 3, "kube-controller-manager": 4, "kube-scheduler": 5}
    plan = Plan(Layout(tmp_path), ports, audit=False)
    arguments = COMPONENTS["kube-apiserver"].arguments(plan)
    assert "--authorization-mode=Node,RBAC" in arguments
    assert "--enable-admission-plugins=NodeRestriction" in arguments
    assert not [argument for argument in arguments if argument.startswith("--audit")]
    audited = COMPONENTS["kube-apiserver"].arguments(Plan(Layout(tmp_path), ports, audit=True))
    assert f"--audit-log-path={tmp_path}/audit.log" in audited


@pytest.mark.parametrize("name", list(COMPONENTS))
def test_no_component_listens_beyond_loopback(tmp_path: Path, name: str) -> None:
    ports = {"etcd": 1, "etcd-peer": 2, "kube-apiserver": 3, "kube-controller-manager": 4, "kube-scheduler": 5}
    arguments = COMPONENTS[name].arguments(Plan(Layout(tmp_path), ports, audit=True))
    listening = [argument for argument in arguments if "bind-address=" in argument or "--listen-" in argument]
    assert listening
    assert all("127.0.0.1" in argument for argument in listening)


def test_audit_policy_never_logs_the_body_of_a_credential() -> None:
    """The first rule that matches decides, so the credentials' rule has to come before any that logs bodies."""
    rules = yaml.safe_load(audit_policy())["rules"]
    levels = [rule["level"] for rule in rules]
    secrets = next(
        number
        for number, rule in enumerate(rules)
        if any("secrets" in entry.get("resources", ()) for entry in rule.get("resources", ()))
    )
    assert levels[secrets] == "Metadata"
    assert secrets < min(levels.index("Request"), levels.index("RequestResponse"))
    assert levels[-1] == "Metadata"


def test_library_rejects_our_server_without_our_authority(tmp_path: Path) -> None:
    """The TLS context made from an access must verify: a foreign listener on our port is not our server."""
    authority = authority_at(tmp_path / "ca.crt", tmp_path / "ca.key", "ca")
    api = ApiAccess(Access(ClusterEndpoint(URL, authority.pem), client_pair(authority, "admin")))
    assert api._context.verify_mode is ssl.CERT_REQUIRED
    assert api._context.check_hostname
