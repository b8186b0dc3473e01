"""The directory that one simulated machine has to itself."""

import fcntl
from pathlib import Path
from typing import BinaryIO

from simulated_node.tree.render import KERNEL_DIRECTORIES

PRIVATE = ".simulated-kernel"


def claim(root: Path) -> BinaryIO:
    """Hold the root for one kernel at a time; the lock goes with the process, however it ends.

    ValueError for a root that is somebody else's: starting removes what the last run left in /sys, /proc, /dev, /run.
    """
    private = root / PRIVATE
    if root.resolve() == Path("/"):
        raise ValueError("a simulated kernel does not run on the real root")
    there = [directory for directory in (*KERNEL_DIRECTORIES, "/run") if (root / directory[1:]).exists()]
    if there and not private.exists():
        raise ValueError(
            f"{root} holds {', '.join(there)}, but no simulated kernel ran there: choose an empty directory"
        )
    private.mkdir(parents=True, exist_ok=True)
    file = (private / "lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(f"another simulated kernel runs below {root}") from None
    return file


def count_boot(root: Path) -> int:
    """How often the machine has been started, this time included."""
    counter = root / PRIVATE / "boots"
    boots = int(counter.read_text("ascii")) + 1 if counter.exists() else 1
    staged = counter.with_name("boots.next")
    staged.write_text(str(boots), "ascii")
    staged.rename(counter)
    return boots
