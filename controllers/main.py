"""`npufleet-controllers`: runs one controller, or all of them, each as a process of its own under its own identity."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from controllers.registry import CONTROLLERS, Controller, find
from runtime import logs
from runtime.settings import LOG_FORMATS, LOG_LEVELS, add_arguments, from_arguments

_USAGE = 2
_DESCRIPTION = """\
Controllers of npufleet. Each runs as a process of its own, one Deployment each, under its own ServiceAccount:

{controllers}

`npufleet-controllers NAME --help` tells the options of one.
"""
_EPILOG = """\
examples:
  npufleet-controllers node-policy                       in a pod, with the pod's own credentials
  npufleet-controllers node-policy --kubeconfig FILE     from anywhere else
  npufleet-controllers --all --kubeconfig-dir DIR        all of them; DIR holds COMPONENT.kubeconfig for each

exit codes: 0 stopped as asked, 2 wrong usage, 3 anything else (start it again)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code; wrong usage exits with 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-"):
        controller = find(words[0])
        if controller is None:
            known = ", ".join(c.name for c in CONTROLLERS)
            sys.stderr.write(f"npufleet-controllers: no controller is called {words[0]!r}; there are: {known}\n")
            return _USAGE
        return _run_one(controller, words[1:])
    return _run_all(words)


def _run_one(controller: Controller, words: list[str]) -> int:
    entry = controller.load()
    parser = argparse.ArgumentParser(
        prog=f"npufleet-controllers {controller.name}",
        description=f"{controller.purpose}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser, port=controller.port)
    entry.add_arguments(parser)
    arguments = parser.parse_args(words)
    try:
        settings = from_arguments(controller.component, arguments)
    except ValueError as error:
        parser.error(str(error))
    logs.setup(settings.component, log_format=settings.log_format, level=settings.log_level)
    return entry.run(settings, arguments)


def _run_all(words: list[str]) -> int:
    names = "\n".join(f"  {c.name:<14}{c.purpose}" for c in CONTROLLERS)
    parser = argparse.ArgumentParser(
        prog="npufleet-controllers",
        usage="npufleet-controllers NAME [options]\n       npufleet-controllers --all --kubeconfig-dir DIR\n"
        "       npufleet-controllers --list",
        description=_DESCRIPTION.format(controllers=names),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help="run every controller, and start those anew that end")
    what.add_argument("--list", action="store_true", help="print the names of the controllers")
    parser.add_argument(
        "--kubeconfig-dir",
        type=Path,
        metavar="DIR",
        help="with --all: where COMPONENT.kubeconfig is, e.g. npufleet-node-policy.kubeconfig",
    )
    parser.add_argument("--log-format", choices=LOG_FORMATS, default="json", help="default json")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="default info")
    arguments = parser.parse_args(words)
    if arguments.list:
        sys.stdout.writelines(f"{controller.name}\n" for controller in CONTROLLERS)
        return 0
    if arguments.kubeconfig_dir is None:
        parser.error("--all needs --kubeconfig-dir DIR")
    missing = [str(path) for path in _kubeconfigs(arguments.kubeconfig_dir).values() if not path.is_file()]
    if missing:
        parser.error(f"there is no {' and no '.join(missing)}: each controller needs an identity of its own")
    from controllers.supervisor import supervise

    logs.setup("npufleet-controllers", log_format=arguments.log_format, level=arguments.log_level)
    common = ["--log-format", arguments.log_format, "--log-level", arguments.log_level]
    return supervise(
        {
            controller.name: [
                *(sys.executable, "-m", "controllers.main", controller.name),
                *("--kubeconfig", str(_kubeconfigs(arguments.kubeconfig_dir)[controller.name])),
                # Several of them on one machine: each takes a free port and prints it.
                *("--listen", "127.0.0.1:0", *common),
            ]
            for controller in CONTROLLERS
        }
    )


def _kubeconfigs(directory: Path) -> dict[str, Path]:
    return {controller.name: directory / f"{controller.component}.kubeconfig" for controller in CONTROLLERS}


if __name__ == "__main__":
    sys.exit(main())
