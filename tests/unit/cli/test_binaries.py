"""The binary cache against a `go` of our own: what it is asked, what it leaves, and what a person is told."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.cluster.errors import ClusterError
from cli.cluster.programs import binaries
from cli.cluster.programs.binaries import content_key, ensure_binaries
from cli.cluster.programs.go_toolchain import GoToolchain, Narration
from cli.progress import Progress

FAKE_GO = """#!{python} -IS
import json, os, pathlib, sys, time
control = pathlib.Path({control!r})
def has(name): return (control / name).exists()
if sys.argv[1] == "env":
    if has("broken"):
        sys.exit("go: cannot find GOROOT directory")
    print(json.dumps({{"GOVERSION": (control / "version").read_text(), "GOOS": "linux", "GOARCH": "amd64"}}))
    sys.exit(0)
output = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
with (control / "builds").open("a") as builds:
    flags = {{k: v for k, v in os.environ.items() if k in ("CGO_ENABLED", "GOFLAGS", "GOWORK")}}
    builds.write(json.dumps({{"pid": os.getpid(), "argv": sys.argv[1:], "cwd": os.getcwd(), "env": flags}}) + "\\n")
output.write_text("half of it")
while has("hold"):
    time.sleep(0.01)
if has("fail"):
    sys.exit("go: downloading example.org/x v1.0.0\\npkg/file.go:7:2: undefined: Frobnicate")
output.write_text("#!/bin/sh\\nexit 0\\n")
output.chmod(0o755)
"""

K8S_MOD = "module x\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/kubernetes v1.37.2\n)\n"
ETCD_MOD = "module y\n\ngo 1.26.0\n\nrequire go.etcd.io/etcd/server/v3 v3.7.3\n"


class Workshop:
    """A fake `go`, a fake hack/ and an empty cache; `hold`, `fail`, `broken` are files that steer the fake."""

    def __init__(self, root: Path) -> None:
        self.control, self.hack, self.cache = root / "control", root / "hack", root / "cache"
        self.bin = root / "bin"
        for path in (self.control, self.bin, self.hack / "etcd", self.hack / "kubernetes"):
            path.mkdir(parents=True)
        self.set_version("go1.26.8")
        (self.hack / "etcd/go.mod").write_text(ETCD_MOD)
        (self.hack / "kubernetes/go.mod").write_text(K8S_MOD)
        for folder in ("etcd", "kubernetes"):
            (self.hack / folder / "go.sum").write_text("example.org/x v1.0.0 h1:aaaa=\n")
        go = self.bin / "go"
        go.write_text(FAKE_GO.format(python=sys.executable, control=str(self.control)))
        go.chmod(0o755)
        self.stream = io.StringIO()
        self.progress = Progress(self.stream, quiet_seconds=0.05)

    def set_version(self, version: str) -> None:
        (self.control / "version").write_text(version)

    def add_module(self, folder: str, requirement: str) -> None:
        (self.hack / folder).mkdir()
        (self.hack / folder / "go.mod").write_text(f"module z\n\ngo 1.26.0\n\nrequire {requirement}\n")
        (self.hack / folder / "go.sum").write_text("example.org/x v1.0.0 h1:aaaa=\n")

    def set(self, flag: str) -> None:
        (self.control / flag).touch()

    def clear(self, flag: str) -> None:
        (self.control / flag).unlink()

    def builds(self) -> list[dict[str, object]]:
        log = self.control / "builds"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def ensure(self, *names: str) -> dict[str, Path]:
        return ensure_binaries(names, progress=self.progress)

    def left_overs(self) -> list[Path]:
        """Everything in the cache that a later call could take for a program."""
        return [path for path in self.cache.rglob("*") if path.is_file() and path.suffix not in (".log", ".lock")]


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.setenv("NPUFLEET_CACHE", str(made.cache))
    monkeypatch.setenv("GOFLAGS", "-mod=mod -race")
    monkeypatch.delenv("NPUFLEET_BIN_DIR", raising=False)
    monkeypatch.setattr(binaries, "HACK", made.hack)
    return made


def eventually(true: Callable[[], bool], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def test_builds_once_and_then_takes_the_cached_program(workshop: Workshop) -> None:
    first = workshop.ensure("etcd")
    second = workshop.ensure("etcd")
    assert first == second
    assert len(workshop.builds()) == 1
    assert first["etcd"].stat().st_mode & stat.S_IXUSR
    assert workshop.cache in first["etcd"].parents


def test_builds_in_the_order_in_which_a_starting_plane_needs_them(workshop: Workshop) -> None:
    built = workshop.ensure("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
    order = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
    assert list(built) == order
    packages = [str(build["argv"][-1]) for build in workshop.builds()]  # type: ignore[index]
    assert packages == ["go.etcd.io/etcd/server/v3", *(f"k8s.io/kubernetes/cmd/{name}" for name in order[1:])]


def test_builds_with_fixed_flags_whatever_the_environment_says(workshop: Workshop) -> None:
    workshop.ensure("kube-apiserver")
    (build,) = workshop.builds()
    argv = build["argv"]
    assert isinstance(argv, list)
    assert build["env"] == {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    assert build["cwd"] == str(workshop.hack / "kubernetes")
    assert "-trimpath" in argv
    assert "-buildvcs=false" in argv
    assert argv[argv.index("-ldflags") + 1] == (
        "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2"
        " -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"
    )


def test_program_with_parts_in_c_is_built_with_them_inside(workshop: Workshop) -> None:
    workshop.add_module("runc", "github.com/opencontainers/runc v1.4.4")
    workshop.ensure("runc")
    (build,) = workshop.builds()
    argv = build["argv"]
    assert isinstance(argv, list)
    assert build["env"] == {"CGO_ENABLED": "1", "GOFLAGS": "", "GOWORK": "off"}
    assert argv[argv.index("-tags") + 1] == "seccomp,netgo,osusergo"
    assert argv[argv.index("-ldflags") + 1] == "-s -w -extldflags -static"


def test_version_is_linked_into_what_tells_it(workshop: Workshop) -> None:
    workshop.add_module("containerd", "github.com/containerd/containerd/v2 v2.4.2")
    built = workshop.ensure("ctr", "containerd")
    assert list(built) == ["containerd", "ctr"]
    assert built["ctr"].parent == built["containerd"].parent
    for build in workshop.builds():
        argv = build["argv"]
        assert isinstance(argv, list)
        assert "github.com/containerd/containerd/v2/version.Version=v2.4.2" in argv[argv.index("-ldflags") + 1]


@pytest.mark.parametrize("change", ["go.mod", "go.sum", "go version"])
def test_builds_anew_when_an_input_changes(workshop: Workshop, change: str) -> None:
    before = workshop.ensure("etcd")["etcd"]
    if change == "go version":
        workshop.set_version("go1.26.9")
    else:
        path = workshop.hack / "etcd" / change
        path.write_text(path.read_text() + "\n")
    after = workshop.ensure("etcd")["etcd"]
    assert before != after
    assert before.exists()
    assert len(workshop.builds()) == 2


def test_key_tells_every_input_apart() -> None:
    go = GoToolchain(Path("/go"), "go1.26.8", "linux/amd64")
    keys = {
        content_key(b"a", b"b", go, ["-x"]),
        content_key(b"a", b"b", go, ["-x"], {"CGO_ENABLED": "1"}),
        content_key(b"ab", b"", go, ["-x"]),
        content_key(b"a", b"b", go, ["-y"]),
        content_key(b"a", b"b", go, ["-x", ""]),
        content_key(b"a", b"b", GoToolchain(Path("/go"), "go1.26.8", "linux/arm64"), ["-x"]),
        content_key(b"a", b"b", GoToolchain(Path("/go"), "go1.27.0", "linux/amd64"), ["-x"]),
    }
    assert len(keys) == 7
    elsewhere = GoToolchain(Path("/opt/go"), "go1.26.8", "linux/amd64")
    assert content_key(b"a", b"b", go, ["-x"]) == content_key(b"a", b"b", elsewhere, ["-x"])


def test_failed_build_shows_the_compiler_and_leaves_nothing(workshop: Workshop) -> None:
    workshop.set("fail")
    with pytest.raises(ClusterError, match=r"pkg/file\.go:7:2: undefined: Frobnicate") as failed:
        workshop.ensure("etcd")
    assert "go.etcd.io/etcd/server/v3" in str(failed.value)
    assert workshop.left_overs() == []
    workshop.clear("fail")
    assert workshop.ensure("etcd")["etcd"].exists()


def test_interrupted_build_ends_go_and_leaves_nothing(workshop: Workshop) -> None:
    workshop.set("hold")

    class Interrupting(io.StringIO):
        def write(self, text: str) -> int:
            if ": 0." in text and workshop.builds():  # a line about a build that runs
                raise KeyboardInterrupt
            return super().write(text)

    with pytest.raises(KeyboardInterrupt):
        ensure_binaries(["etcd"], progress=Progress(Interrupting(), quiet_seconds=0.01))
    (build,) = workshop.builds()
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(build["pid"])), 0)
    assert workshop.left_overs() == []


def test_killed_builder_takes_go_along_and_its_half_file_is_not_used(workshop: Workshop) -> None:
    workshop.set("hold")
    script = (
        "import pathlib, sys; from cli.cluster.programs import binaries\n"
        "binaries.HACK = pathlib.Path(sys.argv[1]); binaries.ensure_binaries(['etcd'])"
    )
    builder = subprocess.Popen(
        [sys.executable, "-c", script, str(workshop.hack)],
        cwd=Path(__file__).parents[3],
        stderr=subprocess.DEVNULL,
    )
    eventually(lambda: len(workshop.left_overs()) == 1, "the builder writes")
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    go = Path("/proc") / str(workshop.builds()[0]["pid"])
    eventually(lambda: not go.exists() or ") Z" in (go / "stat").read_text(), "go has ended")
    workshop.clear("hold")
    assert workshop.ensure("etcd")["etcd"].read_text().startswith("#!/bin/sh")
    assert [path.name for path in workshop.left_overs()] == ["etcd"]


def test_second_caller_waits_says_so_and_builds_nothing(workshop: Workshop) -> None:
    workshop.set("hold")
    first: list[dict[str, Path]] = []
    second: list[dict[str, Path]] = []
    waiting = io.StringIO()
    builder = threading.Thread(target=lambda: first.append(workshop.ensure("etcd")))
    builder.start()
    eventually(lambda: len(workshop.builds()) == 1, "the first builds")
    waiter = threading.Thread(
        target=lambda: second.append(ensure_binaries(["etcd"], progress=Progress(waiting, quiet_seconds=0.05)))
    )
    waiter.start()
    eventually(lambda: waiting.getvalue().count("\n") >= 2, "the waiter says more than once that it waits")
    assert second == []
    workshop.clear("hold")
    builder.join(20)
    waiter.join(20)
    assert first == second
    assert len(first) == 1
    assert len(workshop.builds()) == 1
    assert f"etcd: waiting for another build: 0.0 s, process {os.getpid()}: builds etcd" in waiting.getvalue()


def test_shows_what_is_built_and_for_how_long(workshop: Workshop) -> None:
    workshop.set("hold")
    builder = threading.Thread(target=lambda: workshop.ensure("etcd"))
    builder.start()
    eventually(lambda: workshop.stream.getvalue().count("\n") >= 3, "a line at the start and further ones")
    workshop.clear("hold")
    builder.join(20)
    lines = workshop.stream.getvalue().splitlines()
    assert lines[0] == "building etcd v3.7.3 with go1.26.8 (first time only) ..."
    assert lines[1].startswith("building etcd v3.7.3 with go1.26.8 (first time only): 0.")
    assert lines[-1].startswith("etcd built in ")


def test_download_is_told_while_it_is_news_and_compiling_otherwise(tmp_path: Path) -> None:
    log, now = tmp_path / "log", 0.0
    log.touch()
    narration = Narration(log, clock=lambda: now)
    assert narration.now() == "compiling"
    now = 60.0
    log.write_text("go: downloading example.org/x v1.0.0\n")
    assert narration.now() == "downloading example.org/x v1.0.0"
    now = 69.9
    assert narration.now() == "downloading example.org/x v1.0.0"
    now = 70.0
    assert narration.now() == "compiling"
    now = 200.0
    log.write_text("go: downloading example.org/x v1.0.0\ngo: downloading example.org/y v1.0.0\n")
    assert narration.now() == "downloading example.org/y v1.0.0"
    log.write_text("# example.org/y\ny.go:7:2: undefined: Frobnicate\n")
    assert narration.now() == "compiling"


def test_ready_programs_are_used_and_nothing_is_built(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready"
    ready.mkdir()
    for name in ("etcd", "kube-apiserver"):
        (ready / name).touch(0o755)
    expected = {name: ready / name for name in ("etcd", "kube-apiserver")}
    assert ensure_binaries(["kube-apiserver", "etcd"], bin_dir=ready) == expected
    monkeypatch.setenv("NPUFLEET_BIN_DIR", str(ready))
    assert ensure_binaries(["kube-apiserver", "etcd"]) == expected
    assert workshop.builds() == []


def test_ready_programs_that_lack_one_are_refused_by_name(workshop: Workshop, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ready.mkdir()
    (ready / "etcd").touch(0o755)
    (ready / "kube-scheduler").touch(0o644)  # there, but not executable
    with pytest.raises(ClusterError, match="holds no executable kube-apiserver, kube-scheduler") as refused:
        ensure_binaries(["etcd", "kube-apiserver", "kube-scheduler"], bin_dir=ready)
    assert str(ready) in str(refused.value)
    assert workshop.builds() == []


def test_missing_go_is_named_with_what_to_do(workshop: Workshop) -> None:
    (workshop.bin / "go").unlink()
    with pytest.raises(ClusterError, match=r"Go 1\.26\.0 or newer .* no `go` on PATH: install it .* --bin-dir"):
        workshop.ensure("etcd")


@pytest.mark.parametrize("version", ["go1.25.9", "go1.9", "go1.21rc2"])
def test_too_old_go_is_refused_with_both_versions(workshop: Workshop, version: str) -> None:
    workshop.set_version(version)
    with pytest.raises(ClusterError, match=rf"Go 1\.26\.0 or newer is needed .* is {version}:"):
        workshop.ensure("etcd")
    assert workshop.builds() == []


@pytest.mark.parametrize("version", ["go1.26.0", "go1.27rc1", "go2.0", "devel go1.28-0a1b2c3 Mon Nov 2 10:00:00 2026"])
def test_newer_go_builds(workshop: Workshop, version: str) -> None:
    workshop.set_version(version)
    assert workshop.ensure("etcd")["etcd"].exists()


def test_go_that_does_not_run_is_reported_in_its_own_words(workshop: Workshop) -> None:
    workshop.set("broken")
    with pytest.raises(ClusterError, match="cannot find GOROOT directory"):
        workshop.ensure("etcd")


def test_outside_a_checkout_the_way_out_is_named(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "HACK", workshop.hack / "nowhere")
    with pytest.raises(ClusterError, match=r"in a checkout of npufleet only; elsewhere .* --bin-dir"):
        workshop.ensure("etcd")


def test_cache_that_cannot_be_written_is_named(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = workshop.control / "version"  # a file where a directory is needed
    monkeypatch.setenv("NPUFLEET_CACHE", str(blocked))
    with pytest.raises(ClusterError, match=rf"{blocked}.*NPUFLEET_CACHE"):
        workshop.ensure("etcd")


def test_unknown_program_is_refused(workshop: Workshop) -> None:
    with pytest.raises(ClusterError, match=r"unknown programs .*kube-proxy"):
        workshop.ensure("kube-proxy")


def test_repository_names_a_version_for_every_program() -> None:
    """The real hack/ folder, so that a changed layout of its go.mod is noticed here and not in a ten-minute build."""
    for program in binaries.PROGRAMS.values():
        text = (binaries.HACK / program.folder / "go.mod").read_text()
        assert binaries.required_version(text, program.version_of).startswith("v")
