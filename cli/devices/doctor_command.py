"""`npufleet devices doctor`: its options, and what it prints."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from cli.devices.doctor import Holder
    from node_host.host import Host
    from node_host.view import HostView

NVIDIA: Final = "10de"
_PID: Final = re.compile(r"^pid (\d+) ")

DESCRIPTION = """\
Look whether this host is ready for its NVIDIA cards to go to VMs, whole (--for passthrough) or as vGPUs (--for vgpu):
modules, packages, DKMS, the .run installer, blacklist, initramfs, the label that NVIDIA's driver manager leaves behind,
and who has a card open. Each finding comes with the command that mends it. Nothing is run and nothing is changed.

npufleet itself takes cards from a host driver one by one, so a host driver may stay for the other cards. What is found
matters to the vendor's own tools, and to every card of the host after a reboot.
"""
EXAMPLES = """\
examples:
  sudo npufleet devices doctor                               on the node itself
  sudo npufleet devices doctor --for vgpu
  sudo npufleet devices doctor --node worker-1 --kubeconfig ~/.kube/config     the Node's label, too

exit codes:
  0  nothing found
  1  something is in the way
  2  wrong usage
  3  the host, or the Node, could not be read
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `devices doctor` to the command line."""
    parser = subparsers.add_parser(
        "devices doctor",
        help="what keeps the GPUs of this host from VMs, with the command that mends it",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host-root", type=Path, default=Path("/"), metavar="DIR", help="default: /")
    parser.add_argument(
        "--for", dest="purpose", choices=("passthrough", "vgpu"), default="passthrough", help="default: passthrough"
    )
    parser.add_argument("--node", metavar="NAME", help="ask the API server for the label of this Node, too")
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="with --node; default: $KUBECONFIG")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from cli.devices.doctor import Purpose, findings
    from cli.devices.doctor_facts import read_software
    from cli.devices.host import look_at_host

    host, view = look_at_host(arguments.host_root)
    software = read_software(host)
    labels = asyncio.run(_labels(arguments.kubeconfig, arguments.node)) if arguments.node else None
    holders = list(_holders(host, view))
    purpose = Purpose(arguments.purpose)
    found = findings(software, holders, purpose=purpose, node=arguments.node, labels=labels)
    stay = [address for address, driver in _on_host_drivers(view).items() if address not in {h.device for h in holders}]
    notes = [f"not read: {one}" for one in software.unread]
    if labels is None:
        notes.append("the label of the Node was not looked at: give --node NAME")
    if software.of_network:
        notes.append(f"leave alone, they are of network cards: {', '.join(software.of_network)}")
    if stay and purpose is Purpose.PASSTHROUGH:
        notes.append(f"npufleet can give these to VMs while the host driver stays for others: {', '.join(stay)}")
    if arguments.output == "json":
        json.dump({"findings": [one.to_json() for one in found], "notes": notes}, sys.stdout, indent=2)
        print()
    else:
        for one in found:
            print(f"{one.name}: {one.what}\n  {one.why}")
            for command in one.fix:
                print(f"    {command}")
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        print(f"{len(found) or 'nothing'} found for {purpose}")
    return ExitCode.FINDINGS if found else ExitCode.CLEAN


def _holders(host: Host, view: HostView) -> Iterator[Holder]:
    """Processes of the host that have an NVIDIA device."""
    from cli.devices.doctor import Holder
    from cli.devices.doctor_facts import service_of
    from crds.models.node_state import UseKind

    for address, device in sorted(view.devices.items()):
        if device.vendor != NVIDIA:
            continue
        for user in view.users.get(address, ()):
            if user.kind is UseKind.PROCESS and user.pod_uid is None:
                match = _PID.match(user.detail)
                pid = int(match[1]) if match else None
                service = service_of(host, pid) if pid is not None else None
                yield Holder(address, pid, user.name, user.detail, service)


def _on_host_drivers(view: HostView) -> Mapping[str, str]:
    from node_host.pci.vfio_drivers import is_vfio_driver

    return {
        address: device.driver
        for address, device in sorted(view.devices.items())
        if device.vendor == NVIDIA
        and device.class_code.startswith("03")
        and device.driver is not None
        and not is_vfio_driver(device.driver)
        and not device.is_virtual
        and not view.vetoes.get(address)
    }


async def _labels(kubeconfig: Path | None, node: str) -> Mapping[str, str]:
    from runtime.api import Api, ApiError, CredentialsError, NotFound
    from runtime.list_watch import describe
    from runtime.resources import NODES

    try:
        async with Api.connect(kubeconfig=kubeconfig, component="npufleet", timeout_seconds=30.0) as api:
            found = await api.get(NODES, node)
    except NotFound:
        raise CommandError(f"there is no Node {node}", ExitCode.USAGE) from None
    except ApiError as error:
        raise CommandError(describe(error, NODES)) from error
    except CredentialsError as error:
        raise CommandError(str(error)) from error
    return {str(key): str(value) for key, value in (found["metadata"].get("labels") or {}).items()}
