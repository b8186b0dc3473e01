"""The `npufleet` command: one entry, to which each sub-command's module adds itself.

A module named in COMMANDS offers `register(subparsers)`; its parser sets `run`, a function of the parsed arguments that
returns an exit code. Expected failures are raised as CommandError, so that all commands report them in the same way.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from cli.errors import CommandError, ExitCode

COMMANDS = (
    "cli.cluster.command",
    "cli.demo.command",
    "cli.deviceclasses",
    "cli.devices.command",
    "cli.devices.doctor_command",
    "cli.devices.profiles_command",
    "cli.explain",
    "cli.kubevirt.command",
    "cli.lint.command",
)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

TWO_WORDS = frozenset({("devices", "doctor"), ("devices", "profiles")})

DESCRIPTION = """\
npufleet: every accelerator of a Kubernetes fleet, run from Git.
"""
EPILOG = """\
exit codes:
  0  clean
  1  findings: violations, or something was refused
  2  wrong usage
  3  internal error, or something could not be reached
  4  changes (only where a command offers --exit-code)

`npufleet COMMAND --help` explains a command.
"""

__all__ = ["CommandError", "ExitCode", "build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="npufleet",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"npufleet {_version()}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS:
        importlib.import_module(module).register(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Wrong usage and `--help` end through SystemExit, as argparse does."""
    parser = build_parser()
    parsed = parser.parse_args(_joined(sys.argv[1:] if arguments is None else arguments))
    try:
        code = int(parsed.run(parsed))
        sys.stdout.flush()
    except CommandError as error:
        print(f"npufleet {parsed.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has gone.
        _give_up_stdout()
        return 141
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            return _bug()
        _give_up_stdout()
        print(f"npufleet {parsed.command}: the output could not be written: {error.strerror}", file=sys.stderr)
        return ExitCode.INTERNAL
    except Exception:
        return _bug()
    return code


def _joined(arguments: Sequence[str]) -> list[str]:
    """`devices profiles` and `devices doctor` are one command each: `devices` takes names of nodes as well."""
    if tuple(arguments[:2]) in TWO_WORDS:
        return [" ".join(arguments[:2]), *arguments[2:]]
    return list(arguments)


def _bug() -> ExitCode:
    # Python's own exit code for this, 1, would read as "findings".
    traceback.print_exc()
    print("npufleet: this is a bug in npufleet; please report it with the lines above", file=sys.stderr)
    return ExitCode.INTERNAL


def _give_up_stdout() -> None:
    """Without this Python would complain when it flushes at exit, and end with a code of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version() -> str:
    try:
        return version("npufleet")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
