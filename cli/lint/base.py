"""The files of a Git commit, beside which changes are judged: what may not change, and what was wrong before."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from cli.errors import CommandError, ExitCode
from cli.lint.kustomizations import KUSTOMIZATION_NAMES
from cli.lint.sources import Source, read_text

DEADLINE_SECONDS: Final = 120.0
_ENDINGS: Final = (".yaml", ".yml", ".json")


class _Entry(NamedTuple):
    """A file of a commit: its name from the top, and the id of its content."""

    name: str
    blob: bytes
    is_link: bool


class Base:
    """A commit of the repository that a path lies in."""

    def __init__(self, top: Path, commit: str) -> None:
        self._top = top
        self._commit = commit

    @classmethod
    def of(cls, ref: str, path: Path) -> Base:
        """The commit that ``ref`` names in the repository around ``path``.

        Raises CommandError (usage) when there is no repository or no such commit.
        """
        if not ref or ":" in ref:
            raise CommandError(f"--base {ref!r} is no commit: name a branch, a tag or a commit", ExitCode.USAGE)
        where = path if path.is_dir() else path.parent
        top = _top(where, fault=f"--base needs a Git repository around {path}")
        fetch = f"{ref!r} is no commit in this clone: {_advice(where, ref)}"
        commit = _git(where, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", fault=fetch)
        return cls(top, commit.decode().strip())

    def sources(self, paths: list[Path]) -> list[Source]:
        """The files that the paths held at the commit; a path that was not there holds nothing."""
        inside = [self._inside(path) for path in paths]
        if not inside:
            return []
        below = [] if "." in inside else ["--", *inside]
        entries = [one for one in self._entries(*below) if not one.is_link and _is_wanted(one.name, inside)]
        found = []
        for entry, data in self._contents(entries):
            text, _ = read_text(entry.name, data)
            if text is not None:
                found.append(Source(entry.name, text, is_named=False))
        return found

    @contextmanager
    def exported(self, directory: Path) -> Iterator[Path | None]:
        """The directory as it was at the commit, beside all else of the repository; None when it was not there."""
        inside = self._inside(directory)
        with tempfile.TemporaryDirectory(prefix="npufleet-lint-") as temporary:
            tree = (Path(temporary) / "tree").resolve()
            # Not `git archive`, which leaves out what .gitattributes says (export-ignore): that is for releases.
            tree.mkdir()
            files = sorted(self._entries(), key=lambda one: one.is_link)  # nothing is written through a link
            _lay_out(tree, self._contents(files))
            there = tree / inside
            yield there if any((there / name).is_file() for name in KUSTOMIZATION_NAMES) else None

    def _inside(self, path: Path) -> str:
        # The repository may be reached through a link, as /tmp is on some systems.
        top, here = self._top.resolve(), path.resolve()
        if not here.is_relative_to(top):
            raise CommandError(f"{path} is not in the repository {self._top}: --base knows one only", ExitCode.USAGE)
        return here.relative_to(top).as_posix()

    def _entries(self, *below: str) -> Iterator[_Entry]:
        """Files and links of the commit; submodules are none."""
        listing = _git(self._top, "ls-tree", "-r", "-z", "--full-tree", self._commit, *below)
        for entry in listing.split(b"\0"):
            told, _, raw = entry.partition(b"\t")
            fields = told.split()
            if len(fields) == 3 and fields[1] == b"blob":
                yield _Entry(os.fsdecode(raw), fields[2], is_link=fields[0] == b"120000")

    def _contents(self, entries: list[_Entry]) -> Iterator[tuple[_Entry, bytes]]:
        return zip(entries, self._blobs([one.blob for one in entries]), strict=True)

    def _blobs(self, ids: list[bytes]) -> Iterator[bytes]:
        if not ids:
            return
        data = _git(self._top, "cat-file", "--batch", given=b"\n".join(ids) + b"\n")
        at = 0
        for _ in ids:
            end = data.index(b"\n", at)
            size = int(data[at:end].split()[-1])
            yield data[end + 1 : end + 1 + size]
            at = end + 1 + size + 1


def repository_of(directory: Path) -> Path | None:
    """The top of the Git repository around a directory; None when there is none, or no git."""
    try:
        return _top(directory).resolve()
    except CommandError:
        return None


def _top(directory: Path, *, fault: str = "") -> Path:
    told = _git(directory, "rev-parse", "--show-toplevel", fault=fault)
    return Path(os.fsdecode(told.rstrip(b"\n")))


def _advice(where: Path, ref: str) -> str:
    if _git(where, "rev-parse", "--is-shallow-repository").strip() == b"true":
        return "it is a shallow one, so git fetch --unshallow first (fetch-depth: 0 of actions/checkout)"
    branch = ref.removeprefix("origin/")
    return f"fetch it first, e.g. git fetch origin {branch}"


def _is_wanted(name: str, inside: list[str]) -> bool:
    is_hidden = any(part.startswith(".") for part in Path(name).parts)
    return name in inside or (name.endswith(_ENDINGS) and not is_hidden)


def _lay_out(tree: Path, contents: Iterable[tuple[_Entry, bytes]]) -> None:
    """Write the entries below the tree. A link that leads out of it is left out: a build that needs it says so."""
    links: list[Path] = []
    for entry, data in contents:
        path = tree / entry.name
        if not path.parent.resolve().is_relative_to(tree):
            continue  # no name that Git itself makes
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.is_link:
            path.symlink_to(os.fsdecode(data))
            links.append(path)
        else:
            path.write_bytes(data)
    # Where a link leads is known once all of them are there, and by none that has been taken away.
    while bad := [link for link in links if not _stays(link, tree)]:
        for link in bad:
            link.unlink()
        links = [link for link in links if link not in bad]


def _stays(link: Path, tree: Path) -> bool:
    try:
        return not link.readlink().is_absolute() and link.resolve().is_relative_to(tree)
    except (OSError, RuntimeError):
        return False  # a circle


def _git(where: Path, *arguments: str, given: bytes | None = None, fault: str = "") -> bytes:
    command = ["git", "-c", "core.quotePath=false", *arguments]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            command, cwd=where, env=environment, input=given, capture_output=True, timeout=DEADLINE_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise CommandError("git is not installed: --base reads the files of a commit") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"git {arguments[0]} had not ended after {DEADLINE_SECONDS:.0f} s") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        if fault:
            raise CommandError(f"{fault}{f' ({said})' if said else ''}", ExitCode.USAGE)
        raise CommandError(f"git {arguments[0]}: {said}")
    return done.stdout
