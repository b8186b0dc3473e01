"""Calls to an API server: one connection for many calls, and a server that was started again is met on a new one."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.access.certificates import Authority, authority_at, client_pair, server_pair, write_pair
from cli.cluster.access.kubeconfig import Access, ClusterEndpoint
from cli.cluster.errors import ApiCallError, ClusterError
from tests.builders.waiting import eventually

HOST = "127.0.0.1"


class Server:
    """Answers each call with the number of the connection that it came on; "/status/N" with that status, "/mute"
    never, and "/end" with an answer after which it ends the connection without having said so."""

    def __init__(self, certificate: Path, key: Path, port: int = 0) -> None:
        self.connections = 0
        self.ended = 0
        self.mute = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer.connections += 1
                self.number = outer.connections

            def do_GET(self) -> None:
                if self.path == "/mute":
                    outer.mute.wait()
                body = json.dumps({"connection": self.number, "message": "no"}).encode()
                self.send_response(int(self.path.rpartition("/")[2]) if self.path.startswith("/status/") else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = self.path == "/end"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                return

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def shutdown_request(self, request: Any) -> None:
                super().shutdown_request(request)
                outer.ended += 1

            def handle_error(self, request: Any, client_address: Any) -> None:
                return  # the client has not waited

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server = Listener((HOST, port), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(poll_interval=0.02))
        self._thread.start()

    def stop(self) -> None:
        self.mute.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    found = authority_at(tmp_path / "ca.crt", tmp_path / "ca.key", "ca")
    write_pair(server_pair(found, "server", (HOST,)), tmp_path / "server.crt", tmp_path / "server.key")
    return found


@pytest.fixture
def server(authority: Authority, tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path / "server.crt", tmp_path / "server.key")
    yield found
    found.stop()


@pytest.fixture
def api(server: Server, authority: Authority) -> ApiAccess:
    endpoint = ClusterEndpoint(f"https://{HOST}:{server.port}", authority.pem)
    return ApiAccess(Access(endpoint, client_pair(authority, "admin")))


def connection(api: ApiAccess, method: str = "GET", path: str = "/", body: dict[str, Any] | None = None) -> int:
    number: int = api.call(method, path, body)["connection"]
    return number


def test_many_calls_share_a_connection_whatever_is_answered(api: ApiAccess, server: Server) -> None:
    assert [connection(api), connection(api, "POST", "/", {"a": 1}), connection(api)] == [1, 1, 1]
    with pytest.raises(ApiCallError, match="404 no"):
        api.call("GET", "/status/404")
    assert connection(api) == 1
    assert server.connections == 1


def test_threads_do_not_share_one(api: ApiAccess) -> None:
    assert connection(api) == 1
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(connection(api)))
    thread.start()
    thread.join()
    assert (found, connection(api)) == ([2], 1)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_connection_that_the_server_has_ended_is_not_used_again(api: ApiAccess, server: Server, method: str) -> None:
    assert connection(api, path="/end") == 1
    eventually(lambda: server.ended == 1)
    assert connection(api, method, "/", {}) == 2


def test_a_server_that_was_started_again_is_called_as_if_nothing_had_been(
    api: ApiAccess, server: Server, tmp_path: Path
) -> None:
    assert connection(api, path="/end") == 1
    server.stop()
    with pytest.raises(ClusterError, match="no answer"):
        api.call("GET", "/")
    again = Server(tmp_path / "server.crt", tmp_path / "server.key", server.port)
    try:
        assert connection(api, "POST", "/", {}) == 1
    finally:
        again.stop()


def test_an_answer_that_comes_too_late_is_not_taken_for_that_of_the_next_call(api: ApiAccess) -> None:
    with pytest.raises(ClusterError, match=r"no answer .*timed out"):
        api.call("GET", "/mute", timeout=0.1)
    assert connection(api) == 2
