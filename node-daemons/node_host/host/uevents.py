"""Kernel object events from the netlink socket.

Daemons act on the state they read, never on an event's content: an event only says when to look again. So a message
that cannot be understood is logged and skipped, while a loss the kernel reports (ENOBUFS) ends the stream, because
then nothing says where to look.
"""

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from node_host.host.protocol import Uevent

_log = logging.getLogger(__name__)

# Of linux/netlink.h and asm-generic/socket.h; the socket module does not name them.
_NETLINK_KOBJECT_UEVENT = 15
_SO_RCVBUFFORCE = 33
_KERNEL_GROUP = 1  # the kernel's own events; udev re-sends in group 2
_MESSAGE = 16384  # a message is one datagram: header of two names plus at most 2 KiB of variables (UEVENT_BUFFER_SIZE)
_RECEIVE_BUFFER = 4 * 1024 * 1024
_ACTIONS = frozenset({"add", "remove", "change", "move", "online", "offline", "bind", "unbind"})
_KEY = re.compile(rb"[A-Z_][A-Z0-9_]*")
_SLOT = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def parse_uevent(message: bytes) -> Uevent:
    """``ACTION@DEVPATH NUL KEY=VALUE NUL …`` (lib/kobject_uevent.c); ValueError says what is wrong with anything
    else.
    """
    if not message.endswith(b"\0"):
        raise ValueError("the message is cut off")
    header, *variables = message[:-1].split(b"\0")
    values: dict[bytes, str] = {}
    for variable in variables:
        key, separator, value = variable.partition(b"=")
        if not separator or not _KEY.fullmatch(key):
            raise ValueError(f"not a variable: {variable!r}")
        if key in values:
            raise ValueError(f"{key.decode()} stands twice")
        values[key] = value.decode("utf-8")
    for key in (b"ACTION", b"DEVPATH", b"SUBSYSTEM"):
        if not values.get(key):
            raise ValueError(f"{key.decode()} is missing")
    action, devpath = values[b"ACTION"], values[b"DEVPATH"]
    if action not in _ACTIONS:
        raise ValueError(f"unknown action {action!r}")
    if not devpath.startswith("/"):
        raise ValueError(f"DEVPATH is not below /sys: {devpath!r}")
    if header != f"{action}@{devpath}".encode():
        raise ValueError(f"the header {header!r} contradicts the variables")
    slot = values.get(b"PCI_SLOT_NAME")
    if slot is not None and not _SLOT.fullmatch(slot):
        raise ValueError(f"PCI_SLOT_NAME is no address: {slot!r}")
    return Uevent(action, devpath, values[b"SUBSYSTEM"], values.get(b"DRIVER") or None, slot)


def open_uevent_socket() -> socket.socket:
    """A non-blocking socket in the kernel's uevent group, with room for a burst of hot-plugs."""
    connection = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_KOBJECT_UEVENT)
    try:
        connection.setblocking(False)
        try:
            connection.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
        except PermissionError:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        connection.bind((0, _KERNEL_GROUP))
    except BaseException:
        connection.close()
        raise
    return connection


@asynccontextmanager
async def kernel_uevents() -> AsyncIterator[AsyncIterator[Uevent]]:
    connection = open_uevent_socket()
    try:
        yield read_uevents(connection)
    finally:
        connection.close()


async def read_uevents(connection: socket.socket) -> AsyncIterator[Uevent]:
    """Events from an open socket; OSError(ENOBUFS) comes through when the kernel dropped some."""
    loop = asyncio.get_running_loop()
    while True:
        message, sender = await loop.sock_recvfrom(connection, _MESSAGE)
        # Port 0 is the kernel. Any process may send to the group, and must not make a daemon believe it.
        if sender[0] != 0:
            continue
        try:
            yield parse_uevent(message)
        except ValueError as problem:
            _log.warning("Skipped a uevent: %s", problem)
