"""The reference page of the simulated kernel, written from its rules so that it cannot tell anything else."""

import importlib
import pkgutil

import simulated_node
from simulated_node.rules.registry import RULES, Rule

_PREFACE = """\
# The simulated kernel, rule by rule

Written by `python -m simulated_node.rules --write`; a test fails when it is stale.

A simulated node obeys these rules of the Linux kernel. Each has a stable id; the id of the rule that refused a write
stands in `.simulated-kernel/writes.jsonl` below the node's root. The errno is what the writer gets. Where a rule is
about what daemons see, the [host contract](host-contract.md) shows the same on Linux. A rule is added beside the code
that keeps it.

A daemon finds what it needs to know about the host where it is on a real one:

| fact | file |
|---|---|
| IPv4 routes, networks by interface | `/proc/1/net/route` |
| own IPv4 addresses, no interfaces | `/proc/1/net/fib_trie` (`/32 host LOCAL`) |
| IPv6 routes | `/proc/1/net/ipv6_route` |
| IPv6 addresses by interface | `/proc/1/net/if_inet6` |
| interfaces of a function | `net/<if>/flags`, `operstate`, `master` below the function; `/sys/class/net` |
| disks of a function, volumes on them | `nvme/` or `ata*/` below the function; `slaves` and `holders` in `/sys/block` |
| mounts by device number, swap | `/proc/1/mountinfo`, `/proc/swaps` |
| who holds a node of `/dev` open | `/proc/<pid>/fd/*`, `comm`, `cgroup` |
| whose a node of `/dev` is | class device's `dev` and `uevent`; `dev_id` (Ascend); `/proc/driver/nvidia/gpus` |
| aliases, vfio variants included; modules | `/lib/modules/<release>/modules.alias`, `modules.dep`, `modules.builtin` |

What it does not do:

- Nodes of `/dev` and attributes are plain files: only who reads through the host port sees a read fail, hang, or wait
  for a device's lock; root can read the write-only ones (`bind`), nodes have no device numbers of their own.
- There is no mdev; of vGPU there are types and their frame buffer, no GPU instances, no parameters of a type.
- Killing a process whose write sleeps ends the process, which a real kernel would not; the write itself stays asleep,
  as on a real host.
"""


def all_rules() -> list[Rule]:
    """Every rule there is, sorted by id: the modules that register them are all imported first."""
    for module in pkgutil.walk_packages(simulated_node.__path__, "simulated_node."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return [RULES[identifier] for identifier in sorted(RULES)]


def reference_page() -> str:
    parts = [_PREFACE]
    area = ""
    for rule in all_rules():
        if rule.id.partition(".")[0] != area:
            area = rule.id.partition(".")[0]
            parts.append(f"\n## {area}\n\n| rule | statement | errno | source |\n|---|---|---|---|\n")
        errno = {None: "none", "probe": "the probe's own"}.get(rule.errno, rule.errno)
        parts.append(f"| `{rule.id}` | {rule.statement} | {errno} | {rule.source} |\n")
    return "".join(parts)
