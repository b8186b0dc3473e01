"""`npufleet devices`: its options, and what it prints."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from cli.devices.rows import Listing
from cli.devices.table import table
from cli.errors import CommandError, ExitCode

DESCRIPTION = """\
List the accelerators of all nodes, or of those named: what each is, its kernel driver and IOMMU group, what the
policies make of it, as what it is offered to pods and VMs, which claim and pod have it, and where nobody new can get
it, why. Everything is read from the API server (NPUNodeStates, ResourceSlices, ResourceClaims, Pods; NPUNodePolicies
where a device is held), nothing is written; what the kubeconfig may not list is told on stderr and shown as `?`.

With --host-root it is read from the files of one host instead, without an API server: from sysfs and /proc, and from
what the daemons keep there (published.json, checkpoint, journal, hand-over tokens). Best run as root.
"""
EPILOG = """\
columns:
  MODE           what its policy makes of it; in brackets when it is held, or being given back
  OFFERED        the DRA driver name under which it stands in a ResourceSlice (with --host-root: yes)
  ALLOCATED-TO   pods, and the claim by which they have it
  REASON         why nobody new gets it, in most cases in the words of the policy's blockers or of NPUNodeState

examples:
  npufleet devices                                    every accelerator of the fleet
  npufleet devices node-a node-b -o wide              of two nodes, with policy, NUMA node, slice names and users
  npufleet devices -o json | jq -r '.devices[] | select(.reason != "") | [.node, .address, .reason] | @tsv'
  npufleet devices --host-root /                      of this machine, as its own files tell
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `devices` to the command line."""
    parser = subparsers.add_parser(
        "devices",
        help="list accelerators: driver, mode, who has them, or why nobody gets them",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="only these nodes")
    parser.add_argument("-o", "--output", choices=("table", "wide", "json"), default="table", help="default: table")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="default: $KUBECONFIG, else ~/.kube/config; in a pod, its own"
    )
    source.add_argument(
        "--host-root", type=Path, metavar="DIR", help="read the host whose root is here, and no API server"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    of_host = arguments.host_root is not None
    if of_host and arguments.nodes:
        raise CommandError("--host-root reads one host, whose name is not asked: leave NODE out", ExitCode.USAGE)
    # The API client and the catalogue take most of the start-up, and `--help` needs neither.
    if of_host:
        from cli.devices.host import read_host

        listing = read_host(arguments.host_root)
    else:
        from cli.devices.assemble import assemble
        from cli.devices.cluster import read_cluster

        listing = assemble(asyncio.run(read_cluster(arguments.kubeconfig, arguments.nodes)))
    show(listing, arguments.output, of_host=of_host)
    return ExitCode.CLEAN


def show(listing: Listing, output: str, *, of_host: bool = False) -> None:
    """Rows on stdout; notes on stderr, except in JSON, which has them in it."""
    if output == "json":
        json.dump(listing.to_json(), sys.stdout, indent=2, ensure_ascii=False)
        print()
        return
    if listing.rows:
        print("\n".join(table(listing.rows, wide=output == "wide", of_host=of_host)))
    else:
        print("no accelerators found", file=sys.stderr)
    sys.stdout.flush()
    for note in listing.notes:
        print(f"note: {note}", file=sys.stderr)
