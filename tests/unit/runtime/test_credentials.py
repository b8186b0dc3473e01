"""Kubeconfigs and pod credentials: what is read, when it is read again, what is said when it is broken."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.config import incluster_config

from runtime.credentials import Credentials, CredentialsError
from runtime.kopf_operator import connection_info


def kubeconfig(directory: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None) -> Path:
    path = directory / "kubeconfig"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster or {"server": "http://10.0.0.1:6443"}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(document))
    return path


async def test_token_and_basic_authorization(tmp_path: Path) -> None:
    credentials = await Credentials.load(kubeconfig(tmp_path, {"token": "abc"}))
    assert credentials.authorization() == "Bearer abc"
    credentials = await Credentials.load(kubeconfig(tmp_path, {"username": "u", "password": "p"}))
    assert credentials.authorization() == "Basic " + base64.b64encode(b"u:p").decode()
    credentials = await Credentials.load(kubeconfig(tmp_path, {}))
    assert credentials.authorization() is None


async def test_a_token_file_goes_before_a_token_and_is_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    credentials = await Credentials.load(kubeconfig(tmp_path, {"token": "abc", "tokenFile": "token"}))
    assert credentials.authorization() == "Bearer from-file"


async def test_a_rotated_token_file_is_read_again_and_a_broken_one_keeps_the_last_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    credentials = await Credentials.load(kubeconfig(tmp_path, {"tokenFile": str(token)}))
    now = time.monotonic()
    credentials._clock = lambda: now
    token.write_text("two-longer")
    assert credentials.authorization() == "Bearer one", "the file is not looked at for each call"
    now += 11
    assert credentials.authorization() == "Bearer two-longer"
    for content in ("", "half a token", "\xff"):
        token.write_text(content, encoding="latin-1")
        now += 11
        assert credentials.authorization() == "Bearer two-longer"
    token.unlink()
    assert await credentials.refresh() is False
    token.write_text("three")
    assert await credentials.refresh() is True
    assert credentials.authorization() == "Bearer three"


async def test_a_kubeconfig_without_a_token_file_is_loaded_again_after_a_refusal(tmp_path: Path) -> None:
    credentials = await Credentials.load(kubeconfig(tmp_path, {"token": "same"}))
    assert await credentials.refresh() is False


async def test_an_inline_token_that_was_renewed_in_the_kubeconfig_is_taken_up_after_a_refusal(tmp_path: Path) -> None:
    credentials = await Credentials.load(kubeconfig(tmp_path, {"token": "one"}))
    path = kubeconfig(tmp_path, {"token": "two"})
    assert credentials.authorization() == "Bearer one"
    assert await credentials.refresh() is True
    assert credentials.authorization() == "Bearer two"
    path.write_text("half a fi")
    assert await credentials.refresh() is False
    assert credentials.authorization() == "Bearer two"


@pytest.mark.parametrize(
    "content",
    ["", "[]", "just text", "{", "current-context: nowhere\n", "{current-context: c, contexts: 3}"],
)
async def test_a_broken_kubeconfig_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken"
    path.write_text(content)
    with pytest.raises(CredentialsError, match="broken"):
        await Credentials.load(path)


@pytest.mark.parametrize("content", ["", "[]", "- a\n- b\n", "just words"])
async def test_what_is_no_kubeconfig_is_said_to_be_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(CredentialsError, match=r"this is no kubeconfig, or it is empty|no such file, or it is empty"):
        await Credentials.load(path)


async def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="gone"):
        await Credentials.load(kubeconfig(tmp_path, {"tokenFile": "gone"}))


async def test_tls_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    data = base64.b64encode(b"no certificate").decode()
    cluster = {"server": "https://10.0.0.1:6443", "certificate-authority-data": data}
    credentials = await Credentials.load(kubeconfig(tmp_path, {"token": "x"}, cluster))
    with pytest.raises(CredentialsError, match="kubeconfig"):
        credentials.client()


async def test_the_environment_names_the_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, {"token": "abc"})))
    assert (await Credentials.load()).authorization() == "Bearer abc"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    with pytest.raises(CredentialsError, match="nowhere"):
        await Credentials.load()


async def test_in_a_pod_the_mounted_token_is_used_and_rotates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("pod-token\n")
    authority.write_text("-----BEGIN CERTIFICATE-----\n")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    credentials = await Credentials.load()
    assert credentials.configuration.host == "https://[fd00::1]:443"
    assert credentials.authorization() == "Bearer pod-token"
    token.write_text("rotated-token\n")
    assert await credentials.refresh() is True
    token.unlink()
    with pytest.raises(CredentialsError, match="in-cluster"):
        await Credentials.load()


async def test_proxies_of_the_environment_are_not_for_this_host(tmp_path: Path) -> None:
    for server, proxied in (("http://127.0.0.1:1", False), ("http://localhost:1", False), ("http://10.0.0.1:1", True)):
        credentials = await Credentials.load(kubeconfig(tmp_path, {"token": "x"}, {"server": server}))
        session = credentials.configuration.client_session_kwargs or {}
        assert session.get("trust_env", True) is proxied
        assert connection_info(credentials).trust_env is proxied


async def test_kopf_gets_the_same_identity(tmp_path: Path) -> None:
    credentials = await Credentials.load(kubeconfig(tmp_path, {"token": "abc"}))
    info = connection_info(credentials)
    assert info.server == "http://10.0.0.1:6443"
    assert info.as_http_headers() == {"Authorization": "Bearer abc"}
    anonymous = connection_info(await Credentials.load(kubeconfig(tmp_path, {})))
    assert anonymous.as_http_headers() == {}
