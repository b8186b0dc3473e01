"""Kubeconfig files: written for each identity of the local control plane, read where an existing cluster is used."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cli.cluster.access.certificates import Pair
from cli.cluster.errors import ClusterError
from cli.cluster.files import write_private


@dataclass(frozen=True, slots=True)
class ClusterEndpoint:
    """How to reach and verify an API server. `authority` is PEM; None means the system's trust store."""

    server: str
    authority: bytes | None
    server_name: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Access:
    """An endpoint with the credentials to use there: a client certificate or a bearer token."""

    endpoint: ClusterEndpoint
    client: Pair | None = None
    token: str | None = None


def write_kubeconfig(path: Path, access: Access, *, user: str, namespace: str | None = None) -> None:
    """Write a kubeconfig (mode 0600) that needs no other file."""
    endpoint = access.endpoint
    cluster: dict[str, Any] = {"server": endpoint.server}
    if endpoint.authority is not None:
        cluster["certificate-authority-data"] = _encoded(endpoint.authority)
    if endpoint.server_name is not None:
        cluster["tls-server-name"] = endpoint.server_name
    if not endpoint.verify:
        cluster["insecure-skip-tls-verify"] = True
    credentials: dict[str, Any] = {}
    if access.client is not None:
        credentials["client-certificate-data"] = _encoded(access.client.certificate)
        credentials["client-key-data"] = _encoded(access.client.key)
    if access.token is not None:
        credentials["token"] = access.token
    context = {"cluster": "npufleet", "user": user, **({"namespace": namespace} if namespace else {})}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "npufleet", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "npufleet", "context": context}],
        "current-context": "npufleet",
    }
    write_private(path, yaml.safe_dump(content, sort_keys=False))


def read_kubeconfig(path: Path) -> Access:
    """The current context of a kubeconfig. Raises ClusterError when the file is absent or damaged, or when its user
    logs in by something else than a client certificate or a token (a plugin, say)."""
    try:
        content = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ClusterError(f"kubeconfig {path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ClusterError(f"kubeconfig {path} is not YAML: {error}") from error
    try:
        context = _entry(content, "contexts", content["current-context"], "context")
        cluster = _entry(content, "clusters", context["cluster"], "cluster")
        user = _entry(content, "users", context["user"], "user")
        endpoint = ClusterEndpoint(
            server=str(cluster["server"]),
            authority=_data(cluster, "certificate-authority", path),
            server_name=cluster.get("tls-server-name"),
            verify=not cluster.get("insecure-skip-tls-verify", False),
        )
        certificate, key = _data(user, "client-certificate", path), _data(user, "client-key", path)
        token = user.get("token") or _token_file(user, path)
    except (KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise ClusterError(f"kubeconfig {path} is incomplete or damaged: {error!r}") from error
    except OSError as error:
        raise ClusterError(f"{error.filename}, named in kubeconfig {path}: {error.strerror}") from error
    pair = Pair(certificate, key) if certificate is not None and key is not None else None
    if pair is None and token is None:
        raise ClusterError(
            f"kubeconfig {path}: its user has neither a client certificate nor a token; log-in plugins are not "
            "supported here, make a kubeconfig with a token of an administrator"
        )
    return Access(endpoint, pair, token)


def _entry(content: dict[str, Any], listing: str, name: str, key: str) -> dict[str, Any]:
    for item in content[listing]:
        if item["name"] == name:
            found = item[key]
            if isinstance(found, dict):
                return found
    raise KeyError(f"{listing}: {name}")


def _data(entry: dict[str, Any], key: str, kubeconfig: Path) -> bytes | None:
    if entry.get(f"{key}-data"):
        return base64.b64decode(entry[f"{key}-data"])
    if entry.get(key):
        return (kubeconfig.parent / str(entry[key])).read_bytes()  # relative to the kubeconfig, as kubectl reads it
    return None


def _token_file(user: dict[str, Any], kubeconfig: Path) -> str | None:
    name = user.get("tokenFile")
    return (kubeconfig.parent / str(name)).read_text().strip() if name else None


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
