"""A few synchronous calls to an API server: readiness, tokens, signing requests. Everything that runs for longer uses
the runtime's client; this one exists because a control plane must be asked before any of that can work."""

from __future__ import annotations

import http.client
import json
import select
import ssl
import tempfile
import threading
from typing import Any
from urllib.parse import urlsplit

from cli.cluster.access.kubeconfig import Access
from cli.cluster.errors import ApiCallError, ClusterError


class ApiAccess:
    """Calls with a deadline each; proxies of the environment are not used (the plane is on loopback).

    Each thread keeps its connection: a TLS handshake costs both sides ten times what a small answer does, and whoever
    waits for something asks twenty times a second.
    """

    def __init__(self, access: Access) -> None:
        url = urlsplit(access.endpoint.server)
        if url.scheme != "https" or url.hostname is None:
            raise ClusterError(f"server {access.endpoint.server!r} is not an https:// URL")
        self.server = access.endpoint.server
        self._host, self._port, self._prefix = url.hostname, url.port or 443, url.path.rstrip("/")
        self._server_name = access.endpoint.server_name
        self._context = _tls_context(access)
        self._headers = {"Accept": "application/json"}
        if access.token is not None:
            self._headers["Authorization"] = f"Bearer {access.token}"
        self._kept = threading.local()

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout: float = 10) -> Any:
        """The decoded JSON answer (text when it is not JSON).

        Raises ApiCallError for an error status and ClusterError when there is no answer within `timeout` seconds.
        """
        headers = dict(self._headers)
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        connection = self._connection(timeout)
        try:
            connection.request(method, self._prefix + path, content, headers)
            response = connection.getresponse()
            status, raw = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ClusterError(f"{self.server}{path}: no answer ({error})") from error
        try:
            answer: Any = json.loads(raw)
        except ValueError:
            answer = raw.decode(errors="replace")
        if status >= 400:
            said = answer.get("message") if isinstance(answer, dict) else answer
            raise ApiCallError(status, f"{method} {path}: {status} {said}", answer)
        return answer

    def _connection(self, timeout: float) -> _Connection:
        """This thread's connection; it connects by itself when it is used and has no socket (any more)."""
        connection: _Connection | None = getattr(self._kept, "connection", None)
        if connection is None:
            connection = _Connection(self._host, self._port, self._context, self._server_name)
            self._kept.connection = connection
        connection.allow(timeout)
        return connection


class _Connection(http.client.HTTPSConnection):
    """HTTPS where the certificate may be checked against another name than the address (tls-server-name)."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, name: str | None) -> None:
        # Without a context the base class would read the machine's authorities, which takes 30 ms, and drop them.
        super().__init__(host, port, context=context)
        self._checked_name = name or host
        self._tls = context

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._checked_name)

    def allow(self, timeout: float) -> None:
        """So many seconds for each step of the next call. A socket that has something to say between two calls has
        been ended by the server, which may have been started again since."""
        self.timeout = timeout
        if self.sock is not None:
            poll = select.poll()
            poll.register(self.sock, select.POLLIN)
            if poll.poll(0):
                self.close()
            else:
                self.sock.settimeout(timeout)

    def __del__(self) -> None:
        self.close()


def _tls_context(access: Access) -> ssl.SSLContext:
    try:
        if access.endpoint.authority is None:
            context = ssl.create_default_context()
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cadata=access.endpoint.authority.decode())
        if not access.endpoint.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.client is not None:
            # The library reads client certificates from a file only; this one is 0600 and gone at once.
            with tempfile.NamedTemporaryFile(prefix="npufleet-") as file:
                file.write(access.client.certificate + b"\n" + access.client.key)
                file.flush()
                context.load_cert_chain(file.name)
    except (ssl.SSLError, ValueError) as error:
        raise ClusterError(f"the certificates for {access.endpoint.server} cannot be used: {error}") from error
    return context
