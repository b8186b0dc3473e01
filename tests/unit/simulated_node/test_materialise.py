"""From one rendered tree to the next on disk: exact, and never half of anything to a reader."""

import threading
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulated_node.tree.entries import Directory, File, Link, Tree, TreeBuilder
from simulated_node.tree.materialise import Materialiser
from tests.builders import hosts
from tests.builders.examples import at_least
from tests.builders.hosts import NPU

FLOOR = 2000


def on_disk(root: Path) -> Tree:
    found: Tree = {}
    for path in root.rglob("*"):
        name = f"/{path.relative_to(root)}"
        if path.is_symlink():
            found[name] = Link(str(path.readlink()))
        elif path.is_dir():
            found[name] = Directory()
        else:
            found[name] = File(path.read_bytes(), path.stat().st_mode & 0o777)
    return found


NAMES = st.sampled_from(("a", "b", "c"))
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
LEAVES = st.lists(st.tuples(PATHS, st.sampled_from(("x", "y", "link", "directory"))), max_size=6)


def built(leaves: list[tuple[str, str]]) -> Tree:
    """A tree in which nothing stands below a file or a link."""
    out = TreeBuilder()
    for path, what in leaves:
        above = [path[:end] for end in range(1, len(path)) if path[end] == "/"]
        if path in out.tree or any(not isinstance(out.tree.get(name, Directory()), Directory) for name in above):
            continue
        match what:
            case "directory":
                out.directory(path)
            case "link":
                out.link(path, "/a/b")
            case text:
                out.file(path, text, 0o644 if text == "x" else 0o444)
    return out.tree


def test_disk_is_the_tree_after_any_sequence_of_trees(tmp_path: Path) -> None:
    number = iter(range(1 << 30))
    with at_least(FLOOR, "trees on disk") as examples:

        @settings(max_examples=2050, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.lists(LEAVES, min_size=1, max_size=3))
        def check(sequence: list[list[tuple[str, str]]]) -> None:
            examples.one()
            here = tmp_path / str(next(number))
            (here / "root").mkdir(parents=True)
            files = Materialiser(here / "root", here / "staging")
            for leaves in sequence:
                tree = built(leaves)
                files.replace(tree)
                assert on_disk(here / "root") == tree
            assert list((here / "staging").iterdir()) == []

        check()


def test_reader_sees_old_or_new_and_never_a_part(tmp_path: Path) -> None:
    contents = {b"(null)\n", b"vfio-pci\n", b"x" * 2000 + b"\n"}
    with hosts.running(tmp_path) as kernel:
        path = kernel.root / hosts.attribute(NPU, "driver_override")[1:]
        seen: set[bytes] = set()
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                seen.add(path.read_bytes())

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(30):
            for written in (b"vfio-pci", b"x" * 2000, b"\n"):
                kernel.host().write(hosts.attribute(NPU, "driver_override"), written)
        done.set()
        reader.join()
    assert seen <= contents
    assert len(seen) > 1


def test_device_comes_and_goes_whole(tmp_path: Path) -> None:
    with hosts.running(tmp_path) as kernel:
        device = kernel.description.devices[1]
        directory = kernel.root / kernel.host().resolve(f"{hosts.DEVICES}/{NPU}")[1:]
        names = {entry.name for entry in directory.iterdir()}
        partial: list[set[str]] = []
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                try:
                    inode = directory.stat().st_ino
                    found = {entry.name for entry in directory.iterdir()}
                    if directory.stat().st_ino != inode:
                        continue  # it went while it was looked at
                except FileNotFoundError:
                    continue
                # What its driver brings and takes is allowed to be under way.
                if not names - {"driver", "rebellions"} <= found:
                    partial.append(found)

        reader = threading.Thread(target=look)
        reader.start()
        for _ in range(10):
            kernel.hot_remove(NPU)
            kernel.hot_add(device)
        done.set()
        reader.join()
    assert [sorted(names - found) for found in partial] == []
