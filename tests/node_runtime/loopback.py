"""Lets a process in another network namespace reach a port of this one's loopback: the API server listens there only.

Run as `python -I -S loopback.py PID PORT`: listens on 127.0.0.1:PORT in the network of process PID and connects to
127.0.0.1:PORT here. Imports nothing of ours. Prints a line when it listens.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import sys
from contextlib import suppress

CLONE_NEWNET = 0x40000000
_CHUNK = 65536
_LIBC = ctypes.CDLL(None, use_errno=True)


def _enter(descriptor: int) -> None:
    if _LIBC.setns(descriptor, CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "setns")


def listen_in(pid: int, port: int) -> socket.socket:
    """A socket belongs to the network in which it was made, wherever its owner goes afterwards."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    _enter(there)
    try:
        listener = socket.create_server(("127.0.0.1", port), backlog=64)
    finally:
        _enter(here)
        os.close(here)
        os.close(there)
    return listener


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()


async def serve(listener: socket.socket, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pass(reader, far_writer), _pass(far_reader, writer))

    server = await asyncio.start_server(connected, sock=listener)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(listen_in(int(sys.argv[1]), int(sys.argv[2])), int(sys.argv[2])))
