"""`npufleet kubevirt`: what KubeVirt itself has to be told, for Git."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from cli.errors import CommandError, ExitCode

DESCRIPTION = """\
Print KubeVirt's permittedHostDevices for the policies and profile maps below PATHS, as a part of a KubeVirt object to
commit. vGPUs on virtual functions and mediated devices get the resourceName of their map, whole cards the name by which
NVIDIA's device plugin for KubeVirt publishes them. What KubeVirt cannot tell apart is warned of on stderr.
"""
EXAMPLES = """\
examples:
  npufleet kubevirt permitted-host-devices clusters/prod > kubevirt/permitted.yaml
  npufleet kubevirt permitted-host-devices clusters/prod --existing kubevirt/permitted.yaml --strict
  npufleet kubevirt permitted-host-devices clusters/prod --passthrough-by kubevirt

exit codes:
  0  printed
  1  the files have faults (npufleet lint); with --strict also: there were warnings
  2  wrong usage
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kubevirt` to the command line."""
    parent = subparsers.add_parser("kubevirt", help="print what KubeVirt itself has to be told, for Git")
    commands = parent.add_subparsers(dest="kubevirt_command", metavar="COMMAND", required=True)
    parser = commands.add_parser(
        "permitted-host-devices",
        help="the permittedHostDevices of the KubeVirt object",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", default=["."], help="files or directories (default: .)")
    parser.add_argument(
        "--existing", type=Path, metavar="FILE", help="a KubeVirt object, or its block alone: kept, and extended"
    )
    parser.add_argument("--replace", action="store_true", help="with --existing: drop what that has for PCI and mdev")
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml", help="default: yaml")
    parser.add_argument(
        "--passthrough-by",
        choices=("external", "kubevirt"),
        default="external",
        help="who serves whole cards: a device plugin beside KubeVirt (default), or virt-handler itself",
    )
    parser.add_argument(
        "--mdev-vendor-word",
        choices=("NVIDIA", "GRID"),
        default="NVIDIA",
        help="what the driver puts in front of the profile in names of mediated devices (default: NVIDIA)",
    )
    parser.add_argument("--strict", action="store_true", help="exit 1 when there are warnings")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # The catalogue and the models take most of the start-up, and `--help` needs neither.
    from cli.git_objects import read_git_objects
    from cli.kubevirt.permitted import MDEV, PCI, permitted_host_devices
    from crds.catalogue import load_catalogue

    existing = read_existing(arguments.existing) if arguments.existing is not None else {}
    if arguments.replace:
        existing = {key: value for key, value in existing.items() if key not in (PCI, MDEV)}
    found = permitted_host_devices(
        read_git_objects(arguments.paths),
        load_catalogue(),
        existing,
        external_passthrough=arguments.passthrough_by == "external",
        mdev_word=arguments.mdev_vendor_word,
    )
    document = {"spec": {"configuration": {"permittedHostDevices": found.block}}}
    if arguments.output == "json":
        json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        print("# Printed by `npufleet kubevirt permitted-host-devices`.")
        print(yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True), end="")
    sys.stdout.flush()
    for text in found.warnings:
        print(f"warning: {text}", file=sys.stderr)
    for text in found.notes:
        print(f"note: {text}", file=sys.stderr)
    return ExitCode.FINDINGS if arguments.strict and found.warnings else ExitCode.CLEAN


def read_existing(path: Path) -> dict[str, Any]:
    """The block of a KubeVirt object, of its part, or alone; {} of an object that has none. Raises CommandError."""
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CommandError(f"--existing {path} cannot be read: {error}", ExitCode.USAGE) from error
    if isinstance(content, dict) and "spec" in content:
        content = content["spec"]
        for key in ("configuration", "permittedHostDevices"):
            content = (content or {}).get(key) if isinstance(content or {}, dict) else content
    elif isinstance(content, dict) and "permittedHostDevices" in content:
        content = content["permittedHostDevices"]
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise CommandError(f"--existing {path}: permittedHostDevices is no object", ExitCode.USAGE)
    for key in ("pciHostDevices", "mediatedDevices"):
        entries = content.get(key)
        if entries is not None and not (isinstance(entries, list) and all(isinstance(one, dict) for one in entries)):
            raise CommandError(f"--existing {path}: {key} is no list of objects", ExitCode.USAGE)
    unknown = content.keys() - {"pciHostDevices", "mediatedDevices", "usb"}
    if unknown:
        raise CommandError(
            f"--existing {path}: permittedHostDevices has no {', '.join(sorted(map(str, unknown)))}", ExitCode.USAGE
        )
    return content
