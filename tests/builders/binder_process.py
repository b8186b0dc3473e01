"""The binder's program, as a process against a simulated kernel in another process."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from crds.models.node_state import NPUNodeState
from simulated_node.control import Control
from tests.builders.binder import NODE_UID
from vfio_binder.file_pass import run_from_file


class Machine:
    """A simulated kernel in a process of its own."""

    def __init__(self, directory: Path, description: dict[str, object]) -> None:
        self.root = directory / "root"
        file = directory / "machine.yaml"
        file.write_text(yaml.safe_dump(description))
        command = [sys.executable, "-m", "simulated_node", "--description", str(file), "--root", str(self.root)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert json.loads(self._process.stdout.readline())["ready"] is True
        self.control = Control(self.root)
        self._directory = directory

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(20) == 0

    def binder(self, *arguments: str, entries: list[dict[str, Any]] | None = None) -> subprocess.CompletedProcess[str]:
        """A run to its end."""
        command = self.command(*arguments, entries=entries)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def passes(self, *entries: dict[str, Any]) -> str:
        """One pass of a binder in this process, where it is not a process of its own that counts; what it prints."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run_from_file(self.root, NPUNodeState.model_validate(state(*entries)), dry_run=False)
        return printed.getvalue()

    def start(self, *arguments: str, entries: list[dict[str, Any]]) -> subprocess.Popen[bytes]:
        """A run that the caller ends."""
        command = self.command(*arguments, entries=entries)
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def command(self, *arguments: str, entries: list[dict[str, Any]] | None) -> list[str]:
        command = [sys.executable, "-m", "vfio_binder.main", "--host-root", str(self.root), *arguments]
        if entries is not None:
            file = self._directory / "desired.yaml"
            file.write_text(yaml.safe_dump(state(*entries)))
            command += ["--desired", str(file)]
        return command


def state(*entries: dict[str, object]) -> dict[str, object]:
    """A NPUNodeState with these orders."""
    return {
        "apiVersion": "npufleet.io/v1alpha1",
        "kind": "NPUNodeState",
        "metadata": {"name": "bench", "generation": 1},
        "spec": {"revision": "5d0f", "nodeUID": NODE_UID, "devices": list(entries)},
    }
