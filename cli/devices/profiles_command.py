"""`npufleet devices profiles`: its options, and what it prints."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from cli.devices.profiles import ProfileRow
    from crds.models.profile_map import VGPUProfileMap

DESCRIPTION = """\
Show which vGPU profiles the driver of each node offers and what each card carries, as the profile writers report it in
NPUNodeStates; with --host-root from sysfs of one host, without an API server.

With --check FILE: whether another release of the driver knows every profile of the maps. FILE has the names that it
offers: a saved creatable_vgpu_types, a name a line, or this command's JSON from a node that runs the release already.
Maps come from the cluster, or with --maps from files.
"""
EXAMPLES = """\
examples:
  npufleet devices profiles                                         every card of the fleet
  npufleet devices profiles --host-root / -o json > staging.json    on a node with the new release
  npufleet devices profiles --check staging.json --maps clusters/prod

exit codes:
  0  printed; with --check: every profile of every map is offered
  1  with --check: some are not
  2  wrong usage, or FILE has no names
  3  something could not be read
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `devices profiles` to the command line."""
    parser = subparsers.add_parser(
        "devices profiles",
        help="vGPU profiles that drivers offer, and whether a new release knows those of the maps",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    parser.add_argument("--check", type=Path, metavar="FILE", help="the names that the new release offers")
    parser.add_argument(
        "--maps", metavar="PATH", action="append", default=[], help="with --check: maps in files, not in the cluster"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--kubeconfig", type=Path, metavar="FILE", help="default: $KUBECONFIG, else ~/.kube/config")
    source.add_argument("--host-root", type=Path, metavar="DIR", help="read the host whose root is here")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.maps and arguments.check is None:
        raise CommandError("--maps belongs to --check", ExitCode.USAGE)
    if arguments.check is not None:
        if arguments.host_root is not None:
            raise CommandError("--check compares maps with FILE: leave --host-root out", ExitCode.USAGE)
        return _check(arguments)
    if arguments.host_root is not None:
        from cli.devices.profiles_host import read_profiles

        rows = read_profiles(arguments.host_root)
    else:
        from cli.devices.profiles_cluster import read_rows

        rows = asyncio.run(read_rows(arguments.kubeconfig))
    show_rows(rows, arguments.output)
    return ExitCode.CLEAN


def _check(arguments: argparse.Namespace) -> int:
    from cli.devices.profiles import NamesError, parse_names, unknown_profiles

    try:
        names = parse_names(arguments.check.read_text(encoding="utf-8"))
    except (OSError, NamesError, UnicodeDecodeError) as error:
        raise CommandError(f"--check {arguments.check}: {error}", ExitCode.USAGE) from error
    maps = _maps(arguments)
    unknown = unknown_profiles(maps, names)
    if arguments.output == "json":
        found = {"maps": [one.metadata.name for one in maps], "unknown": [one.to_json() for one in unknown]}
        json.dump(found, sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        for one in unknown:
            print(one)
        print(f"{len(maps)} maps, {len(names)} profiles offered: {len(unknown) or 'none'} unknown")
    return ExitCode.FINDINGS if unknown else ExitCode.CLEAN


def _maps(arguments: argparse.Namespace) -> tuple[VGPUProfileMap, ...]:
    if arguments.maps:
        from cli.git_objects import read_git_objects

        maps = read_git_objects(arguments.maps).maps
        if not maps:
            raise CommandError(f"there is no VGPUProfileMap in {', '.join(arguments.maps)}", ExitCode.USAGE)
        return maps
    from cli.devices.profiles_cluster import read_maps

    return asyncio.run(read_maps(arguments.kubeconfig))


def show_rows(rows: list[ProfileRow], output: str) -> None:
    """Cards on stdout, sorted by node and address."""
    ordered = sorted(rows, key=lambda row: (row.node, row.address))
    if output == "json":
        json.dump({"cards": [row.to_json() for row in ordered]}, sys.stdout, indent=2, ensure_ascii=False)
        print()
        return
    if not ordered:
        print("no vGPU cards found", file=sys.stderr)
    for row in ordered:
        place = f"{row.node} {row.address}".strip()
        print(f"{place}   driver {row.release or '?'}   offers {', '.join(row.offered) or '-'}")
        for one in row.carried:
            words = [one.address, one.uuid, one.profile or "?", one.state, ", ".join(one.users)]
            print(f"  {'   '.join(word for word in words if word)}")
        if row.reason:
            print(f"  {' '.join(row.reason.split())}")
