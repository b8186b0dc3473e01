"""Another process that has a node or a device open, forked off, because a fork starts in no time."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

# include/uapi/linux/vfio.h
_SET_IOMMU: Final = 0x3B66
_GROUP_SET_CONTAINER: Final = 0x3B68
_GROUP_GET_DEVICE_FD: Final = 0x3B6A
_DEVICE_SET_IRQS: Final = 0x3B6E
_TYPE1_IOMMU: Final = 1
_REQUEST_IRQ: Final = 4
_EVENTFD_TRIGGER: Final = 1 << 2 | 1 << 5
_SECONDS: Final = 5
_CGROUPS: Final = Path("/sys/fs/cgroup")


def pod_cgroup(uid: str) -> Path:
    """The directory of the cgroup that a kubelet with the systemd driver makes for a pod."""
    return _CGROUPS / f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid.replace('-', '_')}.slice"


class Holder:
    """Opens a node of /dev, or with ``device`` true uses the device at an address; OSError as the kernel answers.

    It is put into a ``cgroup``, whose directory is made and goes with it.
    """

    def __init__(self, name: str, *, device: bool, cgroup: Path | None = None) -> None:
        self._answers, answers = os.pipe()
        # An event of ours: the child hands it to the kernel, which sets it when it wants the device back.
        self._request = os.eventfd(0)
        self._cgroup = cgroup
        self._child: int | None = os.fork()
        if self._child == 0:
            number = errno.EIO
            try:
                number = _hold(name, self._request if device else None)
                os.write(answers, bytes([number]))
                while number == 0:
                    signal.pause()
            finally:
                os._exit(0)
        os.close(answers)
        answer = os.read(self._answers, 1)
        if answer != b"\0":
            self.close()
            number = answer[0] if answer else errno.ECHILD
            raise OSError(number, os.strerror(number), name)
        if cgroup is not None:
            cgroup.mkdir(parents=True, exist_ok=True)
            (cgroup / "cgroup.procs").write_text(str(self._child))

    def requested(self) -> bool:
        return bool(select.select([self._request], [], [], _SECONDS)[0])

    def close(self) -> None:
        if self._child is not None:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            os.close(self._answers)
            os.close(self._request)
            self._child = None
        if self._cgroup is not None:
            for directory in (self._cgroup, *self._cgroup.parents):
                if directory == _CGROUPS:
                    break
                with suppress(OSError):  # another holder's is below
                    directory.rmdir()


def _hold(name: str, request: int | None) -> int:
    try:
        Path("/proc/self/comm").write_text("holder")
        if request is None:
            os.open(name, os.O_RDWR)
        else:
            _use(name, request)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _use(address: str, request: int) -> None:
    """Group, container, device, and an event for the kernel's request."""
    group_number = Path(f"/sys/bus/pci/devices/{address}/iommu_group").readlink().name
    group = os.open(f"/dev/vfio/{group_number}", os.O_RDWR)
    container = os.open("/dev/vfio/vfio", os.O_RDWR)
    fcntl.ioctl(group, _GROUP_SET_CONTAINER, struct.pack("i", container))
    fcntl.ioctl(container, _SET_IOMMU, _TYPE1_IOMMU)
    # A mutable argument: only then the answer is what the call returned, a descriptor.
    device = fcntl.ioctl(group, _GROUP_GET_DEVICE_FD, bytearray(address.encode() + b"\0"))
    fcntl.ioctl(device, _DEVICE_SET_IRQS, struct.pack("IIIIIi", 24, _EVENTFD_TRIGGER, _REQUEST_IRQ, 0, 1, request))
