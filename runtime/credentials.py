"""Where the API server is and who we are to it: one reading of kubeconfig or pod credentials for every client.

The official loader does the work; added here is what it leaves out: a token file is read again when it was rotated
(bound ServiceAccount tokens live for about an hour), and broken input ends in one message that names the file.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import ClientMiddlewareType
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import incluster_config, kube_config
from kubernetes.aio.config.config_exception import ConfigException
from yarl import URL

_RECHECK_SECONDS = 10.0


class CredentialsError(Exception):
    """The kubeconfig, or a file it names, is missing or unusable; the text names it."""


class Credentials:
    """Server address, TLS material and the Authorization header of the moment.

    `configuration` is the library's object (`host`, `ssl_ca_cert`, `cert_file`, `key_file`, `verify_ssl`, …).
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        origin: str,
        token_file: Path | None = None,
        reloader: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.configuration = configuration
        self.origin = origin
        self._token_file = token_file
        self._reloader = reloader
        self._clock = clock
        self._checked = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._file_token: str | None = None
        if token_file is not None and self._read_token_file() is None:
            raise CredentialsError(f"{origin}: token file {token_file} is missing, empty or unreadable")

    @classmethod
    async def load(cls, kubeconfig: Path | None = None) -> Credentials:
        """Read `kubeconfig`; without one the pod's own credentials, else $KUBECONFIG, else ~/.kube/config.

        Raises CredentialsError when nothing usable is found.
        """
        if kubeconfig is None and os.environ.get(incluster_config.SERVICE_HOST_ENV_NAME):
            return cls._in_cluster()
        return await cls._from_kubeconfig(kubeconfig)

    @classmethod
    def _in_cluster(cls) -> Credentials:
        configuration = Configuration()
        token_file = Path(incluster_config.SERVICE_TOKEN_FILENAME)
        try:
            incluster_config.load_incluster_config(configuration, try_refresh_token=False)  # type: ignore[no-untyped-call]
        except ConfigException as error:
            raise CredentialsError(f"in-cluster credentials: {error}") from error
        configuration.api_key.clear()
        _keep_proxies_off_loopback(configuration)
        return cls(configuration, origin="in-cluster credentials", token_file=token_file)

    @classmethod
    async def _from_kubeconfig(cls, kubeconfig: Path | None) -> Credentials:
        paths = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        origin = f"kubeconfig {paths}"
        configuration = Configuration()
        try:
            token_file = await _load(paths, origin, configuration)
        except CredentialsError:
            raise
        except ConfigException as error:
            raise CredentialsError(f"{origin}: {error}") from error
        except Exception as error:  # the loader raises whatever a malformed document makes it stumble over
            raise CredentialsError(f"{origin}: this is no kubeconfig, or it is empty ({error})") from error
        if not configuration.host:
            raise CredentialsError(f"{origin}: clusters[].cluster.server is missing")
        _keep_proxies_off_loopback(configuration)

        async def reload() -> None:
            # From the file: whoever renews an inline token writes it there. An exec plug-in is asked again, too.
            await _load(paths, origin, configuration)

        return cls(configuration, origin=origin, token_file=token_file, reloader=reload)

    def client(self, *middlewares: ClientMiddlewareType) -> ApiClient:
        """A library client for these credentials; raises CredentialsError when the TLS files do not fit."""
        session = self.configuration.client_session_kwargs or {}
        self.configuration.client_session_kwargs = {**session, "middlewares": middlewares}
        try:
            return ApiClient(self.configuration)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise CredentialsError(f"{self.origin}: TLS files cannot be used: {error}") from error

    def authorization(self) -> str | None:
        """Value of the Authorization header now, or None when the client certificate alone identifies us."""
        if self._token_file is not None:
            token = self._read_token_file()
            return f"Bearer {token}" if token else None
        key = self.configuration.api_key.get("BearerToken")
        return str(key).strip() if key else None

    def recheck(self) -> None:
        """Have the next `authorization` look at the token file, however short ago it was looked at."""
        self._checked = float("-inf")

    async def refresh(self) -> bool:
        """After a 401: read everything again. True when the Authorization header changed, so a retry makes sense."""
        before = self.authorization()
        self.recheck()
        if self._token_file is None and self._reloader is not None:
            try:
                await self._reloader()
            except Exception:  # half-written kubeconfig or a failing exec plugin: keep what we have
                return False
        return self.authorization() != before

    def _read_token_file(self) -> str | None:
        """The token, read again when the file changed. A file that vanished or is half-way keeps the last token."""
        assert self._token_file is not None
        now = self._clock()
        if now - self._checked < _RECHECK_SECONDS:
            return self._file_token
        self._checked = now
        try:
            # ServiceAccount volumes swap a symlink: stat follows it, so inode and mtime change with each rotation.
            status = self._token_file.stat()
            identity = (status.st_ino, status.st_mtime_ns, status.st_size)
            if identity != self._seen:
                token = self._token_file.read_text(encoding="ascii").strip()
                if token and not any(character.isspace() for character in token):
                    self._file_token = token
                    self._seen = identity
        except (OSError, UnicodeDecodeError):
            pass
        return self._file_token


async def _load(paths: str, origin: str, configuration: Configuration) -> Path | None:
    """Read the kubeconfig into the configuration; the current user's `tokenFile`. Raises whatever the library does."""
    merged = kube_config.KubeConfigMerger(paths).config  # type: ignore[no-untyped-call]
    if merged is None or not isinstance(merged.value, dict):
        raise CredentialsError(f"{origin}: no such file, or it is empty; give --kubeconfig or set KUBECONFIG")
    loader: Any = kube_config.KubeConfigLoader(config_dict=merged, config_base_path=None)  # type: ignore[no-untyped-call]
    await loader.load_and_set(configuration)
    return _token_file(merged, loader.current_context["context"].get("user"))


def _token_file(merged: Any, user_name: str | None) -> Path | None:
    """`tokenFile` of the current user; it goes before `token`, and relative paths start at the kubeconfig."""
    if not user_name:
        return None
    user = merged["users"].get_with_name(user_name, safe=True)
    if not user:
        return None
    fields = user["user"]
    name = fields.safe_get("tokenFile")
    if not name:
        return None
    base = Path(fields.path).resolve().parent if fields.path else Path.cwd()
    return base / str(name)


def _keep_proxies_off_loopback(configuration: Configuration) -> None:
    """A proxy from the environment is never meant for a server on this host (curl and kubectl do the same)."""
    if is_loopback(configuration.host):
        configuration.client_session_kwargs = {"trust_env": False}


def is_loopback(url: str) -> bool:
    """True for a URL whose host is this machine itself."""
    host = URL(url).host or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")
