"""The lab's commands for people: `python -m tests.kernel.lab --help`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kernel.lab.errors import LabError
from tests.kernel.lab.extra_modules import ensure_modules
from tests.kernel.lab.kernel_packages import install_tools, prepare
from tests.kernel.lab.run import LabRun
from tests.kernel.lab.run_directory import RUNS
from tests.kernel.lab.watch import tail

BOOT_SECONDS = 600.0
SHELL = ("bash", "-i")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m tests.kernel.lab",
        description="A Linux guest with SR-IOV, IOMMU groups and VFIO, without hardware. The tests in "
        "tests/kernel/guest run in it by themselves (make test-kernel); these commands are for preparing it and for "
        "looking around.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    prepared = commands.add_parser(
        "prepare", help="install the tools, download the kernel once; prints where it lies, as JSON"
    )
    prepared.add_argument("--refresh", action="store_true", help="look for a newer 6.12 kernel than the cached one")
    commands.add_parser("modules", help="build tests/kernel/modules; prints the module tree, as JSON")
    boot = commands.add_parser(
        "boot",
        help="a shell in the guest, or one command",
        description="Boots the guest with this checkout as its directory. Without COMMAND: a shell on its console; "
        "`exit` switches the guest off. Writes of the guest to the host's files stay in its memory, except in "
        "/state and /results. NPUFLEET_LAB_ACCEL=tcg|kvm|auto chooses how it is run.",
    )
    boot.add_argument("--seconds", type=float, default=BOOT_SECONDS, help="deadline for COMMAND (default: %(default)g)")
    boot.add_argument(
        "--logs", type=Path, default=RUNS, help="where the run's directory is made (default: %(default)s)"
    )
    boot.add_argument("words", nargs="*", metavar="COMMAND", help="after --: what to run in the guest")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    # What a shell starts in the background inherits the interrupt as ignored; a guest must end by it there, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        install_tools()
        if options.command == "prepare":
            print(json.dumps(prepare(refresh=options.refresh).described(), indent=2))
            return 0
        if options.command == "modules":
            tree = ensure_modules(prepare())
            print(json.dumps({"modules": str(tree.modules), "built": [str(path) for path in tree.built]}, indent=2))
            return 0
        return boot_guest(options.words, options.seconds, options.logs)
    except (LabError, OSError) as error:  # OSError: no room, or no right, in the cache or the run's directory
        print(f"npufleet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def boot_guest(words: Sequence[str], seconds: float, logs: Path) -> int:
    """Run the words, or a shell, in the guest; the exit status is theirs. Raises LabError when there was none."""
    interactive = not words
    run = LabRun(base=logs)
    try:
        directory = run.prepare_boot(1, words or SHELL, interactive=interactive)
        print(f"npufleet: booting {run.summary}", file=sys.stderr)
        guest = run.start(directory, interactive=interactive)
        try:
            deadline = time.monotonic() + seconds
            while guest.status() is None and (interactive or time.monotonic() < deadline):
                guest.wait(0.2)
        finally:
            guest.kill()
        if not interactive and directory.output.exists():
            sys.stdout.write(directory.output.read_text(errors="replace"))
        if not directory.status.exists():
            raise LabError(f"the guest ended without a result; its serial line:\n{tail(directory.serial)}")
        return int(directory.status.read_text())
    finally:
        run.close()


if __name__ == "__main__":
    sys.exit(main())
