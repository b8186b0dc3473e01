"""The cluster that `npufleet cluster up` leaves running: found by its directory, completed, ended."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.cluster.errors import ClusterError
from cli.cluster.locks import holder, try_lock
from cli.cluster.programs.binaries import cache_directory
from cli.cluster.run.components import API_SERVER, ETCD
from cli.cluster.run.control_plane import ControlPlane
from cli.cluster.run.layout import Layout
from cli.cluster.run.runner import Runner
from cli.progress import Progress

ESSENTIAL = {ETCD, API_SERVER}


def default_directory() -> Path:
    return cache_directory() / "cluster"


def up(
    directory: Path, *, components: Iterable[str], audit: bool, bin_dir: Path | None, progress: Progress
) -> ControlPlane:
    """Bring up what is asked and leave what runs: a running cluster only gets the components it lacks, a cluster whose
    API server or etcd is gone (a reboot, a kill) is started again on its data. Raises ClusterError."""
    wanted = list(components)
    present = ControlPlane.at(directory, bin_dir=bin_dir, progress=progress)
    running = present.running() if present is not None else {}
    if present is None or not running.keys() >= ESSENTIAL:
        plane = ControlPlane.start(
            directory, components=wanted, audit=audit, bin_dir=bin_dir, progress=progress, detached=True
        )
        plane.release()
        return plane
    if audit and present.audit_log is None:
        raise ClusterError(f"the cluster in {directory} runs without audit log: `npufleet cluster down` first")
    lacking = [name for name in wanted if name not in running]
    if lacking:
        with _exclusive(Layout(directory.absolute()), "adds components"):
            for name in lacking:
                present.start_component(name)
    return present


def down(directory: Path, *, progress: Progress) -> bool:
    """End the cluster of this directory and remove its data and credentials; the logs stay. False when there is none.

    Raises ClusterError when a running process of ours (a demo, a test) holds the directory.
    """
    layout = Layout(directory.absolute())
    if not layout.marker.exists():
        return False
    with _exclusive(layout, "stops the control plane"):
        there = layout.data.exists() or layout.admin_kubeconfig.exists()
        runner = Runner(layout, audit=False, detached=True, progress=progress)
        if runner.running():
            with progress.step("stopping the control plane", "control plane stopped"):
                runner.stop()
        layout.remove_cluster()
    return there


def running_kubeconfig(directory: Path) -> Path:
    """The administrator's kubeconfig of the running cluster. Raises ClusterError when it does not run."""
    plane = ControlPlane.at(directory)
    if plane is None:
        raise ClusterError(
            f"there is no cluster in {directory}: start one with `npufleet cluster up --directory {directory}`"
        )
    missing = ESSENTIAL - plane.running().keys()
    if missing:
        raise ClusterError(
            f"the cluster in {directory} has ended ({', '.join(sorted(missing))} not running): `npufleet cluster up` "
            "starts it again on its data"
        )
    return plane.admin_kubeconfig


@contextmanager
def _exclusive(layout: Layout, purpose: str) -> Iterator[None]:
    lock = try_lock(layout.lock, purpose)
    if lock is None:
        raise ClusterError(f"{layout.directory} is in use by {holder(layout.lock)}: end that first")
    try:
        yield
    finally:
        os.close(lock)
