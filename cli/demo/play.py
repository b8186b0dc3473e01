"""Sets the stage, tells the story, and leaves nothing running unless asked to."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from cli.cluster.kubectl import find_kubectl
from cli.cluster.run.control_plane import ControlPlane
from cli.demo.fleet import Fleet
from cli.demo.story import ATOM, Story
from cli.errors import CommandError
from cli.progress import Progress, duration


def play(directory: Path, *, bin_dir: Path | None, keep: bool) -> None:
    """Run the whole story with everything that it makes below `directory`; with `keep` wait for Ctrl-C before the end.

    Raises CommandError when a step does not come true; whatever runs is stopped in any case.
    """
    progress = Progress()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{directory} cannot be used: {error.strerror}") from error
    with ControlPlane.start(directory / "control-plane", bin_dir=bin_dir) as plane:
        started = time.monotonic()
        fleet = Fleet(plane, directory)
        try:
            story = Story(plane, fleet, directory, progress)
            story.install()
            story.first_commit()
            story.claim()
            story.second_commit()
            story.vgpu_commit()
            story.past_git()
            story.reboot()
            story.quiet()
            print(f"\nDone in {duration(time.monotonic() - started)}.", flush=True)
            if keep:
                _keep(plane, fleet, directory)
        finally:
            with progress.step("Stopping", "Everything stopped"):
                fleet.stop()


def _keep(plane: ControlPlane, fleet: Fleet, directory: Path) -> None:
    print(
        f"""
It keeps running. In another terminal:

  export KUBECONFIG={plane.admin_kubeconfig}
  {find_kubectl()} get npunodepolicies,npunodestates,vgpuprofilemaps
  {find_kubectl()} get npunodestate {ATOM} -o yaml
  {Path(sys.executable).with_name("npufleet")} devices

  cd {directory / "policies"}    # edit atom.yaml, commit, then apply what you committed:
  git commit --all --message "Another limit"
  {find_kubectl()} apply --server-side -k .

  ls {fleet.nodes[ATOM].root / "sys/bus/pci/drivers"}
  tail -f {fleet.nodes[ATOM].root / ".simulated-kernel/writes.jsonl"}

Logs: {directory / "logs"}
Ctrl-C stops everything.""",
        flush=True,
    )
    try:
        while True:
            fleet.check()
            threading.Event().wait(1)
    except KeyboardInterrupt:
        print()
