"""One write to the kernel, in a process of its own that can be left behind when the kernel does not come back.

Run as ``python -I -S write_child.py ROOT PATH [DATA]``; DATA is escaped by ``escape`` below, without it the bytes
come from stdin. The file stands alone (no import from the project, nothing heavy at start) because a daemon starts it
for every write that may block; the daemon's own writes use the same functions, so there is one way to write.
"""
# pathlib would cost a third of this program's start-up.
# ruff: noqa: PTH110, PTH115, PTH118, PTH119, PTH120

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

SOCKET = ".simulated-kernel/socket"
_SUN_PATH = 107  # bytes that fit in sockaddr_un beside the closing NUL (unix(7))
_LINKS = 40  # as many links as the kernel follows (path_resolution(7))


def resolve_in_root(root: str, path: str, *, strict: bool = True) -> str:
    """Follow every link of a host path inside ROOT: absolute targets start again at ROOT and ``..`` stops there.

    With ``strict`` false, what comes after the first missing name is taken as it stands.
    """
    if not path.startswith("/") or "\0" in path:
        raise OSError(errno.EINVAL, "not an absolute host path", path)
    base = root.rstrip("/")
    done: list[str] = []
    todo = path.split("/")[::-1]
    links = 0
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            del done[-1:]
            continue
        try:
            target = os.readlink("/".join((base, *done, name)))
        except OSError as error:
            if error.errno == errno.EINVAL or (error.errno == errno.ENOENT and not strict):
                done.append(name)
                continue
            raise
        links += 1
        if links > _LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            done.clear()
        todo.extend(reversed(target.split("/")))
    return "/" + "/".join(done)


def write_attribute(root: str, path: str, data: bytes) -> None:
    """One write(2) to an attribute that exists: the kernel must see the value whole, and a missing name must stay
    missing.
    """
    real = root.rstrip("/") + resolve_in_root(root, path)
    descriptor = os.open(real, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        written = os.write(descriptor, data)
    finally:
        os.close(descriptor)
    if written != len(data):
        raise OSError(errno.EIO, f"the kernel took {written} of {len(data)} bytes", path)


def connect(root: str) -> "socket.socket":
    """A connection to the simulated kernel below ROOT, however long ROOT is."""
    import socket

    path = os.path.join(root, SOCKET)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if len(os.fsencode(path)) <= _SUN_PATH:
            connection.connect(path)
        else:
            directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                connection.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
            finally:
                os.close(directory)
    except BaseException:
        connection.close()
        raise
    return connection


def ask_simulated_kernel(root: str, request: "dict[str, Any]") -> "dict[str, Any]":
    """One request on a connection of its own: the kernel logs the process that connected as the writer."""
    import json

    with connect(root) as connection, connection.makefile("rwb") as stream:
        stream.write(json.dumps(request).encode() + b"\n")
        stream.flush()
        line = stream.readline()
    if not line.endswith(b"\n"):
        raise OSError(errno.EIO, "the simulated kernel went away before it answered", request.get("path"))
    answer: dict[str, Any] = json.loads(line)
    if "errno" in answer:
        raise OSError(answer["errno"], answer.get("message", os.strerror(answer["errno"])), request.get("path"))
    return answer


def write(root: str, path: str, data: bytes) -> None:
    """The write, to whichever kernel is below ROOT."""
    if os.path.exists(os.path.join(root, SOCKET)):
        ask_simulated_kernel(root, {"op": "write", "path": path, "data": data.decode("latin-1")})
    else:
        write_attribute(root, path, data)


def escape(data: bytes) -> str:
    """Bytes as one printable argument (a NUL cannot stand in an argument)."""
    return data.decode("latin-1").encode("unicode_escape").decode("ascii")


def unescape(argument: str) -> bytes:
    return argument.encode("ascii").decode("unicode_escape").encode("latin-1")


def main(arguments: list[str]) -> int:
    if len(arguments) not in (2, 3):
        sys.stderr.write("usage: write_child.py ROOT PATH [DATA]\n")
        return 2
    root, path = arguments[:2]
    try:
        data = unescape(arguments[2]) if len(arguments) == 3 else sys.stdin.buffer.read()
        write(root, path, data)
    except OSError as error:
        import json

        sys.stdout.write(
            json.dumps({"errno": error.errno or errno.EIO, "message": error.strerror or str(error)}) + "\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
