"""Where a kubelet has its files, and sockets there whatever the length of the machine's root."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

KUBELET: Final = "/var/lib/kubelet"
REGISTRY: Final = f"{KUBELET}/plugins_registry"
POD_RESOURCES: Final = f"{KUBELET}/pod-resources"
PODS: Final = f"{KUBELET}/pods"
POD_LOGS: Final = "/var/log/pods"
STATE: Final = f"{KUBELET}/dra_manager_state"
SOCKET: Final = "kubelet.sock"


class SocketPlace:
    """A socket's name in a directory that is held open, so that its address is short. Close it after use."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when the directory is not there."""
        self._directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._name = path.name

    @property
    def address(self) -> str:
        """The address as gRPC wants it."""
        return f"unix:/proc/self/fd/{self._directory}/{self._name}"

    def clear(self) -> None:
        """Take away the socket that somebody left there."""
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.stat(self._name, dir_fd=self._directory, follow_symlinks=False).st_mode):
                os.unlink(self._name, dir_fd=self._directory)

    def close(self) -> None:
        os.close(self._directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
