"""The programs of a control plane and of a node, built from published Go modules (hack/) with the ordinary `go`:
nothing is downloaded ready-made, and what was built once is kept outside the repository under a key of everything that
went into it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.checkout import ROOT
from cli.cluster.errors import ClusterError
from cli.cluster.locks import locked
from cli.cluster.programs.go_toolchain import FIXED_ENVIRONMENT, GoToolchain, find_go, fixed_environment, go_build
from cli.progress import Progress

HACK = ROOT / "hack"
BIN_DIR_VARIABLE = "NPUFLEET_BIN_DIR"
CACHE_VARIABLE = "NPUFLEET_CACHE"

# The control plane reports the version that is linked in; without it clients see v0.0.0 and refuse to work.
KUBERNETES_MODULE = "k8s.io/kubernetes"
ETCD_MODULE = "go.etcd.io/etcd/server/v3"
CONTAINERD_MODULE = "github.com/containerd/containerd/v2"
RUNC_MODULE = "github.com/opencontainers/runc"
CNI_MODULE = "github.com/containernetworking/plugins"


@dataclass(frozen=True, slots=True)
class Program:
    """How one program is built: the tools module under hack/, its package, and the module its version comes from.

    `linker`: further flags, `{version}` filled in. `static_c`: it has parts in C, which are linked in as well, so that
    it runs wherever the others do; a C compiler and the headers of its libraries are needed then.
    """

    folder: str
    package: str
    version_of: str
    tags: tuple[str, ...] = ()
    linker: str = ""
    static_c: bool = False

    @property
    def environment(self) -> Mapping[str, str]:
        return fixed_environment(cgo=self.static_c)


# In the order in which a starting control plane needs them.
CONTROL_PLANE_PROGRAMS = {
    "etcd": Program("etcd", ETCD_MODULE, ETCD_MODULE),
    **{
        name: Program("kubernetes", f"k8s.io/kubernetes/cmd/{name}", KUBERNETES_MODULE)
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
    },
}

# What a node runs beside its kubelet: containerd with its shim and client, runc, and plugins for the pods' network.
NODE_PROGRAMS = {
    **{
        name: Program(
            "containerd",
            f"{CONTAINERD_MODULE}/cmd/{name}",
            CONTAINERD_MODULE,
            # No file systems that need C libraries or kernel modules of their own, and no manual pages.
            tags=("no_btrfs", "no_devmapper", "no_zfs", "urfave_cli_no_docs"),
            linker=f"-X {CONTAINERD_MODULE}/version.Version={{version}}",
        )
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    },
    # Without seccomp it refuses every container that asks for a profile, and a pod's first container always does.
    "runc": Program("runc", RUNC_MODULE, RUNC_MODULE, tags=("seccomp", "netgo", "osusergo"), static_c=True),
    **{
        name: Program("cni", f"{CNI_MODULE}/plugins/{group}/{name}", CNI_MODULE)
        for group, name in (("main", "bridge"), ("main", "loopback"), ("ipam", "host-local"))
    },
}

# Kubernetes' own driver for tests of dynamic resource allocation: what ours is compared with.
PEER_PROGRAMS = {
    "dra-test-driver": Program("dra-test-driver", f"{KUBERNETES_MODULE}/test/e2e/dra/test-driver", KUBERNETES_MODULE),
}

PROGRAMS = {**CONTROL_PLANE_PROGRAMS, **NODE_PROGRAMS, **PEER_PROGRAMS}


def cache_directory() -> Path:
    """$NPUFLEET_CACHE, or ~/.cache/npufleet."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given).expanduser().absolute() if given else Path.home() / ".cache" / "npufleet"


def ensure_binaries(
    names: Iterable[str], *, bin_dir: Path | None = None, progress: Progress | None = None
) -> dict[str, Path]:
    """The paths of the named programs, built first where the cache has none (etcd, then kube-apiserver, then the rest).

    `bin_dir` (or $NPUFLEET_BIN_DIR) holds ready programs that are used as they are. Several processes may call this at
    once: one builds, the others wait and say so. Raises ClusterError when a program is missing from `bin_dir`, and when
    Go is missing, too old, or fails; a failed or interrupted build leaves nothing that a later call would use.
    """
    wanted = set(names)
    unknown = wanted - PROGRAMS.keys()
    if unknown:
        raise ClusterError(f"unknown programs {sorted(unknown)}: known are {', '.join(PROGRAMS)}")
    ordered = [name for name in PROGRAMS if name in wanted]
    given = bin_dir if bin_dir is not None else _bin_dir_of_environment()
    if given is not None:
        return _given(given, ordered)
    reporter = progress or Progress()
    return {name: _built(name, reporter) for name in ordered}


def _bin_dir_of_environment() -> Path | None:
    value = os.environ.get(BIN_DIR_VARIABLE)
    return Path(value).expanduser() if value else None


def _given(directory: Path, names: list[str]) -> dict[str, Path]:
    paths = {name: (directory / name).absolute() for name in names}
    missing = [name for name, path in paths.items() if not (path.is_file() and os.access(path, os.X_OK))]
    if missing:
        raise ClusterError(
            f"{directory} holds no executable {', '.join(missing)}: put it there, or leave out --bin-dir and "
            f"${BIN_DIR_VARIABLE} so that it is built"
        )
    return paths


def _built(name: str, progress: Progress) -> Path:
    program = PROGRAMS[name]
    module = HACK / program.folder
    try:
        go_mod, go_sum = (module / "go.mod").read_bytes(), (module / "go.sum").read_bytes()
    except OSError as error:
        raise ClusterError(
            f"{error.filename} cannot be read ({error.strerror}): programs are built in a checkout of npufleet only; "
            f"elsewhere give ready ones with --bin-dir or ${BIN_DIR_VARIABLE}"
        ) from error
    go = find_go(module)
    version = required_version(go_mod.decode(), program.version_of)
    flags = build_flags(program, version)
    key = content_key(go_mod, go_sum, go, flags, program.environment)
    binaries = cache_directory() / "binaries"
    target = binaries / f"{program.folder}-{version}-{key}" / name
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _build(name, program, version, go, [*flags, program.package], target, progress)
    except OSError as error:
        raise ClusterError(
            f"{error.filename or binaries}: {error.strerror}; programs are kept there, choose another place with "
            f"${CACHE_VARIABLE}"
        ) from error
    return target


def _build(
    name: str, program: Program, version: str, go: GoToolchain, arguments: list[str], target: Path, progress: Progress
) -> None:
    # One lock for all builds of this cache: two at once on the same machine are slower than one after the other.
    lock = target.parent.parent / "build.lock"
    waiting = progress.waiting(f"{name}: waiting for another build")
    with locked(lock, f"builds {name}", waiting=waiting.tick):
        waiting.clear()
        if target.exists():
            return
        for left_over in target.parent.glob(f".{name}.*.partial"):  # of a builder that was killed: we hold its lock
            left_over.unlink(missing_ok=True)
        partial = target.with_name(f".{name}.{os.getpid()}.partial")
        try:
            with progress.step(
                f"building {name} {version} with {go.version} (first time only)", f"{name} built"
            ) as step:
                log = target.with_name(f"{name}.log")
                arguments = ["-o", str(partial), *arguments]
                go_build(go, HACK / program.folder, arguments, log=log, step=step, environment=program.environment)
            _to_disk(partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    """Without this a power cut after the rename could leave an empty file that counts as built."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def required_version(go_mod: str, module: str) -> str:
    """The version of `module` that a go.mod requires, e.g. `v1.37.2`."""
    line = re.search(rf"^(?:require)?\s*{re.escape(module)}\s+(v\S+)", go_mod, re.MULTILINE)
    if line is None:
        raise ClusterError(f"go.mod does not require {module}: restore hack/ from the repository")
    return line[1]


def build_flags(program: Program, version: str) -> list[str]:
    """The flags of `go build`: the same for everybody, so that the same inputs give the same program."""
    linker = "-s -w"
    if program.version_of == KUBERNETES_MODULE:
        major, minor = version.removeprefix("v").split(".")[:2]
        prefix = "k8s.io/component-base/version"
        linker += f" -X {prefix}.gitVersion={version} -X {prefix}.gitMajor={major} -X {prefix}.gitMinor={minor}"
    if program.linker:
        linker += " " + program.linker.format(version=version)
    if program.static_c:
        linker += " -extldflags -static"
    tags = ["-tags", ",".join(program.tags)] if program.tags else []
    return ["-buildvcs=false", "-trimpath", *tags, "-ldflags", linker]


def content_key(
    go_mod: bytes,
    go_sum: bytes,
    go: GoToolchain,
    flags: list[str],
    environment: Mapping[str, str] = FIXED_ENVIRONMENT,
) -> str:
    """16 hex digits over everything that decides what comes out of the build."""
    digest = hashlib.sha256()
    settings = [f"{name}={value}" for name, value in sorted(environment.items())]
    for part in (go_mod, go_sum, *(text.encode() for text in (go.version, go.target, *flags, *settings))):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]
