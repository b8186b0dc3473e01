"""`npufleet deviceclasses`: the DeviceClasses of a DRA driver name, for Git."""

from __future__ import annotations

import argparse

from pydantic import TypeAdapter, ValidationError

from cli.errors import CommandError, ExitCode
from crds.device_classes import BASE_DRIVERS, class_name, extended_resource_name
from crds.device_names import NamedKind
from crds.generator.device_classes import device_class_documents
from crds.models.base import DriverName

DESCRIPTION = f"""\
Print the DeviceClasses by which pods ask for devices that are published under a DRA driver name (`driverName` of an
NPUNodePolicy), as YAML for Git: `NAME` for devices that stay with containers, `vfio-NAME` for devices that go to VMs.
Every installation has those of {" and ".join(BASE_DRIVERS)}. A policy with another name is not Ready, with reason
DeviceClassMissing, until its classes exist.
"""
EXAMPLES = """\
examples:
  npufleet deviceclasses npu.example.com > device-classes/npu.example.com.yaml
  npufleet deviceclasses npu.example.com | kubectl diff -f -
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `deviceclasses` to the command line."""
    parser = subparsers.add_parser(
        "deviceclasses",
        help="print the DeviceClasses of a DRA driver name, for Git",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="the DRA driver name: a DNS subdomain of at most 63 characters")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    print("\n".join(device_class_text(arguments.name)))
    return ExitCode.CLEAN


def device_class_text(driver: str) -> list[str]:
    """The lines to print. Raises CommandError with exit code 2 for what no policy takes as `driverName`."""
    try:
        TypeAdapter(DriverName).validate_python(driver, strict=True)
    except ValidationError:
        raise CommandError(
            f"{driver!r} is no DRA driver name: a DNS subdomain of lower-case letters, digits, `-` and `.`, at most 63 "
            "characters, as in npu.example.com",
            ExitCode.USAGE,
        ) from None
    head = [f"# Printed by `npufleet deviceclasses {driver}`."]
    if driver in BASE_DRIVERS:
        head.append("# Part of kustomize/base: an installation has these already.")
    if extended_resource_name(driver, NamedKind.NPU) is None:
        name = class_name(driver, NamedKind.NPU)
        head.append("# No extendedResourceName: Kubernetes keeps such names to itself. A pod without a claim asks for")
        head.append(f"# deviceclass.resource.kubernetes.io/{name} instead.")
    return [*head, device_class_documents(driver).rstrip("\n")]
