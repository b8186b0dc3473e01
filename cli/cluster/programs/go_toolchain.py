"""The `go` command on this machine: found, checked against what a module asks for, run with visible progress."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.cluster.errors import ClusterError
from cli.cluster.files import tail
from cli.cluster.run.processes import spawn
from cli.progress import Step

INSTALL_HINT = "install it (https://go.dev/dl), or give ready binaries with --bin-dir or $NPUFLEET_BIN_DIR"
POLL_SECONDS = 0.1
FRESH_SECONDS = 10.0

# What the build must not inherit: a user's flags, a go.work or cgo would give other programs under the same key.
FIXED_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GO111MODULE": "on"}


@dataclass(frozen=True, slots=True)
class GoToolchain:
    """A usable Go: `program` is its path, `version` like `go1.26.8`, `target` like `linux/amd64`."""

    program: Path
    version: str
    target: str


def fixed_environment(*, cgo: bool) -> dict[str, str]:
    """What is the same in every build; with `cgo` the program may have parts in C."""
    return {**FIXED_ENVIRONMENT, "CGO_ENABLED": "1" if cgo else "0"}


def build_environment(fixed: Mapping[str, str] = FIXED_ENVIRONMENT) -> dict[str, str]:
    return {**os.environ, **fixed}


def find_go(module: Path) -> GoToolchain:
    """The Go that will build `module` (a directory with go.mod). It is asked inside the module, because Go may switch
    to the version that the module names.

    Raises ClusterError when Go is missing, does not run, or is older than go.mod asks.
    """
    wanted = go_directive((module / "go.mod").read_text())
    needed = f"Go {'.'.join(map(str, wanted))} or newer is needed to build the local control plane"
    found = shutil.which("go")
    if found is None:
        raise ClusterError(f"{needed}, and there is no `go` on PATH: {INSTALL_HINT}")
    asked = subprocess.run(
        [found, "env", "-json", "GOVERSION", "GOOS", "GOARCH"],
        cwd=module,
        env=build_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer = json.loads(asked.stdout)
        version, target = answer["GOVERSION"], f"{answer['GOOS']}/{answer['GOARCH']}"
    except (ValueError, KeyError, TypeError) as error:
        said = (asked.stderr or asked.stdout).strip() or f"exit code {asked.returncode}"
        raise ClusterError(f"{needed}, but {found} cannot be used: {said}") from error
    have = _numbers(version)
    if have is not None and have < wanted:
        raise ClusterError(f"{needed}, but {found} is {version}: {INSTALL_HINT}")
    return GoToolchain(Path(found), version, target)


def go_directive(go_mod: str) -> tuple[int, int, int]:
    """The oldest Go that a go.mod accepts, from its `go` line."""
    line = re.search(r"^go\s+(\S+)", go_mod, re.MULTILINE)
    return (_numbers(f"go{line[1]}") if line else None) or (1, 0, 0)


def _numbers(version: str) -> tuple[int, int, int] | None:
    match = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", version)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def go_build(
    go: GoToolchain,
    module: Path,
    arguments: list[str],
    *,
    log: Path,
    step: Step,
    environment: Mapping[str, str] = FIXED_ENVIRONMENT,
) -> None:
    """Run `go build ARGUMENTS` in `module`, output to `log`; the build dies with this process.

    Raises ClusterError with the end of the output when it fails.
    """
    log.write_bytes(b"")
    command = [str(go.program), "build", *arguments]
    child = spawn(command, output=log, environment=build_environment(environment), directory=module)
    try:
        narration = Narration(log)
        while child.poll() is None:
            step.tick(narration.now())
            time.sleep(POLL_SECONDS)
    except BaseException:
        # `go` leads a session of its own, so its compilers are in this process group and nobody else is.
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    if child.returncode != 0:
        raise ClusterError(
            f"`go build {arguments[-1]}` failed in {module} (exit code {child.returncode}):\n{tail(log, 15)}\n"
            f"whole output: {log}"
        )


class Narration:
    """What a build does, in words: Go tells each download (`downloading k8s.io/api v0.37.2`) and is silent while it
    compiles, so that what it said last is true only for a short time."""

    def __init__(self, log: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._said = ""
        self._said_at = clock()

    def now(self) -> str:
        said, now = tail(self._log, 1), self._clock()
        if said != self._said:
            self._said, self._said_at = said, now
        if said.startswith("go: ") and now - self._said_at < FRESH_SECONDS:
            return said.removeprefix("go: ")
        return "compiling"
