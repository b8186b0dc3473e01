"""`npufleet lint`: what is wrong with policies, maps and quotas before the API server says it, one fault at a time."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from cli.errors import CommandError, ExitCode

FORMAT_NAMES = ("text", "json", "sarif", "junit", "github")
DEFAULT_VERSION = "1.37"
STDIN = "-"
_VERSION = re.compile(r"v?[0-9]+\.[0-9]+([.+-].*)?")

DESCRIPTION = """\
Check files as the API server, the admission webhook and kubectl would, and tell every fault at once, each with its
place, its rule and the nearest legal value. The rules are those of the webhook, and so are their ids:
`npufleet explain RULE` says why a rule is there.

A PATH is a file or a directory; `-` reads stdin, e.g. what `helm template` writes. With --kustomize, what is applied is
built first, and faults name object and field. Files alone are taken for a part of what is applied; a directory, stdin
and a kustomization for all of it, so that a profile map that nobody defines is a fault there.
"""
EXAMPLES = """\
examples:
  npufleet lint clusters/prod                             every YAML and JSON file below
  npufleet lint --kustomize overlays/prod                 what is applied, as kubectl builds it
  npufleet lint --base origin/main clusters/prod          changes that are forbidden; what was wrong before is a warning
  npufleet lint --format github clusters                  annotations in a pull request
  npufleet lint --fix clusters/prod                       quotes that are missing and the like; asks before it writes
  npufleet lint --baseline lint.json --write-baseline .   let today's faults pass, and no new ones

what it says:
  policy.yaml:12:9: error: NPUNodePolicy/atoms: spec.devices[0].match.products[0]: unknown product "RBLN-CA2"; did you
  mean RBLN-CA25? [NPF-NP-101]
  The API server stops at the first kind of fault that it finds: unknown fields, then the schema, then rules between
  fields, then the webhook. Where an object has several kinds, a note says which would come to light in which step.

kinds of other groups:
  Kinds of Kubernetes are checked with the schemas of kubernetes-validate (pip install 'npufleet[manifests]');
  --skip-built-in passes over them. Other kinds are errors, as a misspelt one looks the same: define them with --crds,
  or let a group pass with --allow-group.

exit codes:
  0  no errors (and with --strict no warnings)
  1  errors
  2  wrong usage, or something is not installed
  3  internal error, or git or kubectl cannot be run
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `lint` to the command line."""
    parser = subparsers.add_parser(
        "lint",
        help="tell what is wrong with files before they are applied",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="a file or a directory; - reads stdin")
    parser.add_argument("--kustomize", metavar="DIR", help="lint what `kubectl kustomize DIR` makes")
    parser.add_argument("--base", metavar="REF", help="the commit that the change starts from, e.g. origin/main")
    parser.add_argument("--format", choices=FORMAT_NAMES, default="text", help="how to tell (default: text)")
    parser.add_argument("--strict", action="store_true", help="warnings count as errors")
    parser.add_argument("--baseline", metavar="FILE", type=Path, help="let the faults pass that are written down there")
    parser.add_argument("--write-baseline", action="store_true", help="write the faults of this run to the baseline")
    parser.add_argument("--fix", action="store_true", help="show, and after a yes make, changes that keep the meaning")
    parser.add_argument("--diff", action="store_true", help="with --fix: show the changes of the text as well")
    parser.add_argument("--yes", action="store_true", help="with --fix: do not ask")
    parser.add_argument(
        "--k8s-version",
        metavar="V",
        default=DEFAULT_VERSION,
        help=f"the version of Kubernetes whose kinds are known (default: {DEFAULT_VERSION})",
    )
    parser.add_argument("--skip-built-in", action="store_true", help="pass over kinds of Kubernetes itself")
    parser.add_argument("--crds", metavar="PATH", action="append", default=[], help="CustomResourceDefinitions to know")
    parser.add_argument(
        "--allow-group", metavar="GROUP", action="append", default=[], help="pass over kinds of this API group"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    _refuse_contradictions(arguments)
    # The rules and the CEL library take most of a second to import: no other command shall pay for them.
    from cli.lint.run import run

    return run(arguments)


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    stdin = STDIN in arguments.paths
    for wrong, message in (
        (not arguments.paths and arguments.kustomize is None, "say what to lint: a PATH, - or --kustomize DIR"),
        (bool(arguments.paths) and arguments.kustomize is not None, "a PATH and --kustomize do not go together"),
        (stdin and len(arguments.paths) > 1, "- stands alone: stdin is all that is linted"),
        (stdin and arguments.base is not None, "--base needs files: stdin has no commit"),
        (arguments.fix and (stdin or arguments.kustomize is not None), "--fix changes files: give it a PATH"),
        (arguments.write_baseline and arguments.baseline is None, "--write-baseline needs --baseline FILE"),
        (arguments.write_baseline and arguments.fix, "--fix and --write-baseline do not go together"),
        ((arguments.yes or arguments.diff) and not arguments.fix, "--yes and --diff belong to --fix"),
        (not _VERSION.fullmatch(arguments.k8s_version), "--k8s-version is a version such as 1.37"),
    ):
        if wrong:
            raise CommandError(f"{message} (npufleet lint --help)", ExitCode.USAGE)
