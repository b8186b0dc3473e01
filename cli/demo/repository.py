"""The Git repository of the demo: policies are committed to it, and what HEAD holds is what gets applied."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from cli.errors import CommandError

# Kept in the repository, so that a person who goes on in it needs no settings of their own.
_SETTINGS = {"user.name": "npufleet demo", "user.email": "demo@npufleet.invalid", "commit.gpgsign": "false"}


class PolicyRepository:
    """A repository with one branch. Raises CommandError with git's own words when a call of git fails."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._git("init", "--quiet", "--initial-branch=main")
        for name, value in _SETTINGS.items():
            self._git("config", name, value)

    def commit(self, files: Mapping[str, str], message: str) -> str:
        """Write the files (path: content), commit them, and give back the short id of the commit."""
        for name, content in files.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        self._git("add", "--", *files)
        self._git("commit", "--quiet", "--message", message)
        return self._git("rev-parse", "--short", "HEAD").decode().strip()

    def change_of_head(self) -> str:
        """The lines that the last commit took away and added."""
        lines = self._git("show", "--format=", "--unified=0", "HEAD").decode().splitlines()
        return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))

    def export_head(self, into: Path) -> Path:
        """The content of HEAD, without what is only in the work tree, as a folder."""
        into.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=BytesIO(self._git("archive", "HEAD"))) as archive:
            archive.extractall(into, filter="data")
        return into

    def _git(self, *arguments: str) -> bytes:
        # Settings of the person or the machine (hooks, signing, templates) must not reach into the demo.
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.directory), "GIT_CONFIG_NOSYSTEM": "1"}
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=self.directory, env=environment, capture_output=True, timeout=60, check=False
            )
        except FileNotFoundError as error:
            raise CommandError("git is not installed: the demo commits policies to a Git repository") from error
        if done.returncode != 0:
            raise CommandError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout
