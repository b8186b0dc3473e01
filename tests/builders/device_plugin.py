"""A device plugin of the older kind, for a real kubelet: it names devices that are healthy, and nothing else.

The few messages it needs are written by hand (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto): there are no
stubs of a protocol that npufleet does not speak.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

_DIRECTORY = "var/lib/kubelet/device-plugins"
_VERSION = "v1beta1"


@contextmanager
def device_plugin(root: Path, resource: str, devices: Iterable[str]) -> Iterator[None]:
    """Registered with the kubelet whose files are below `root`, until the block is left."""
    ended = threading.Event()
    answer = b"".join(_field(1, _field(1, name.encode()) + _field(2, b"Healthy")) for name in devices)

    def list_and_watch(request: bytes, context: Any) -> Iterator[bytes]:
        yield answer
        ended.wait()

    methods: dict[str, Any] = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda request, context: b""),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(list_and_watch),
    }
    socket = root / _DIRECTORY / f"{resource.replace('/', '-')}.sock"
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{_VERSION}.DevicePlugin", methods),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            _register(socket.with_name("kubelet.sock"), socket.name, resource)
            yield
        finally:
            ended.set()
            server.stop(0).wait()
            socket.unlink(missing_ok=True)


def _register(kubelet: Path, endpoint: str, resource: str) -> None:
    request = b"".join(_field(number, text.encode()) for number, text in enumerate((_VERSION, endpoint, resource), 1))
    with grpc.insecure_channel(f"unix:{kubelet}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        call: Any = channel.unary_unary(f"/{_VERSION}.Registration/Register")
        call(request, timeout=10)


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field; short ones only."""
    assert len(content) < 128
    return bytes((number << 3 | 2, len(content))) + content
