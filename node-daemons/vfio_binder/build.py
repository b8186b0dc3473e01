"""The binder of the host that is mounted at a root, put together."""

from collections.abc import Callable
from pathlib import Path

from crds.catalogue import load_catalogue
from node_host.acting.bounded_write import BoundedWriter
from node_host.acting.journal import JOURNAL, Journal
from node_host.host import Host, open_host
from node_host.wall_clock import now
from vfio_binder.binder import Binder


def build_binder(
    root: Path,
    *,
    count_write: Callable[[str], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
    wake: Callable[[], None] = lambda: None,
) -> tuple[Host, Binder]:
    """``wake`` is called when a write that was stuck has ended, ``count_write`` for each write with its result."""
    host = open_host(root)
    writer = BoundedWriter(host, on_result=count_write, on_unstuck=wake)
    try:
        journal = Journal(host.local(JOURNAL))
    except OSError as error:  # a file or a loop of links where a directory should be: told as a journal's problem
        journal = Journal(Path(JOURNAL), fault=error)
    return host, Binder(host, load_catalogue(), journal, writer, now=now, stopping=stopping)
