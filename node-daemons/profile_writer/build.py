"""The writer of the host that is mounted at a root, put together."""

from collections.abc import Callable
from pathlib import Path

from crds.catalogue import load_catalogue
from node_host.acting.bounded_tool import BoundedTools
from node_host.acting.bounded_write import BoundedWriter
from node_host.host import HostWithTools, open_host
from node_host.wall_clock import now
from profile_writer.record import RECORD, Record
from profile_writer.tools import ToolPaths
from profile_writer.writer import ProfileWriter


def build_writer(
    root: Path,
    paths: ToolPaths,
    *,
    count_write: Callable[[str], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
    wake: Callable[[], None] = lambda: None,
) -> tuple[HostWithTools, ProfileWriter]:
    """``wake`` is called when a write or a program that was stuck has ended, ``count_write`` for each write."""
    host = open_host(root)
    writer = BoundedWriter(host, on_result=count_write, on_unstuck=wake)
    tools = BoundedTools(host, on_ended=wake)
    try:
        record = Record(host.local(RECORD))
    except OSError as error:  # a file or a loop of links where a directory should be: told as the record's problem
        record = Record(Path(RECORD), fault=error)
    return host, ProfileWriter(host, load_catalogue(), record, writer, tools, now=now, paths=paths, stopping=stopping)
