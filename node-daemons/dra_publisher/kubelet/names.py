"""What a plugin's sockets are called, and where they are: the kubelet and every other plugin of the name rely on it.

Names and their order are those of Kubernetes' own helper (k8s.io/dynamic-resource-allocation, kubeletplugin). A path of
a Unix socket has room for 107 bytes, and the longest driver name leaves too little for a pod's UID.
"""

import base64
import hashlib
import re
from collections.abc import Iterable
from typing import Final

KUBELET: Final = "/var/lib/kubelet"
REGISTRY: Final = "plugins_registry"
PLUGINS: Final = "plugins"
MAX_PATH: Final = 107
"""Bytes of a socket's path: sun_path of unix(7) is 108 with the NUL at its end."""

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DRIVER: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_POD_UID: Final = re.compile(r"[0-9A-Za-z](?:[-0-9A-Za-z]{0,62}[0-9A-Za-z])?")


class SocketNameError(ValueError):
    """No socket can be made for this driver or pod; the text says why."""


class SocketNames:
    """The sockets of one driver name in one instance of the publisher, as host paths.

    ``pod_uid`` None: the only instance on the node. Raises SocketNameError.
    """

    def __init__(self, driver: str, pod_uid: str | None, kubelet: str = KUBELET) -> None:
        if len(driver) > 63 or not _DRIVER.fullmatch(driver):
            raise SocketNameError(f"{driver!r} is no driver name: a DNS subdomain of at most 63 characters is one")
        if pod_uid is not None and not _POD_UID.fullmatch(pod_uid):
            raise SocketNameError(f"{pod_uid!r} is no UID of a pod")
        self.driver = driver
        self.registry = f"{kubelet}/{REGISTRY}"
        self.directory = f"{kubelet}/{PLUGINS}/{driver}"
        self.registration = _first_that_fits(self.registry, _registrations(driver, pod_uid))
        self.endpoint = _first_that_fits(self.directory, _endpoints(pod_uid))


def _registrations(driver: str, pod_uid: str | None) -> Iterable[str]:
    if pod_uid is None:
        yield f"{driver}-reg.sock"
        return
    yield f"{driver}-{pod_uid}-reg.sock"
    yield f"{driver}-{_short(pod_uid, 8)}-reg.sock"
    both = _short(driver + "\0" + pod_uid, 16)
    yield f"dra-{both}-reg.sock"


def _endpoints(pod_uid: str | None) -> Iterable[str]:
    if pod_uid is None:
        yield "dra.sock"
        return
    yield f"dra-{pod_uid}.sock"
    # Kubernetes' helper has no shorter ones and fails with long driver names.
    yield f"dra-{_short(pod_uid, 8)}.sock"
    yield f"dra-{_short(pod_uid, 6)}.sock"


def _first_that_fits(directory: str, names: Iterable[str]) -> str:
    paths = [f"{directory}/{name}" for name in names]
    for path in paths:
        if len(path.encode()) <= MAX_PATH:
            return path
    raise SocketNameError(f"{paths[-1]} is longer than the {MAX_PATH} bytes that a socket's path may have")


def _short(text: str, size: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:size]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
