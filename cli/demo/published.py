"""What the vendor's documentation asks of a cluster: the two queries, word for word, by which users look for NPUs."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

from cli.errors import CommandError

CLASSES = "kubectl get deviceclasses"
DRIVER = "npu.rebellions.ai"
FILTER = (
    f'.items[] | select(.spec.driver == "{DRIVER}") '
    "| [.spec.pool.name, (.spec.devices | length), .spec.devices[0].name] | @tsv"
)
SLICES = f"kubectl get resourceslices -o json | \\\n  jq -r '{FILTER}'"


def pools(slices: str) -> str:
    """The answer of the second query to the JSON text of all slices: pool, number of devices, name of the first.

    By jq itself; where there is none, by the same steps. Raises CommandError when jq does not take it.
    """
    jq = shutil.which("jq")
    if jq is None:
        return pools_without_jq(slices)
    done = subprocess.run([jq, "-r", FILTER], input=slices, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise CommandError(f"jq: {done.stderr.strip()}")
    return done.stdout


def pools_without_jq(slices: str) -> str:
    """The same answer by the same steps."""
    specs = [item["spec"] for item in json.loads(slices)["items"] if item["spec"]["driver"] == DRIVER]
    return "".join(_line(spec["pool"]["name"], spec.get("devices") or []) for spec in specs)


def _line(pool: str, devices: list[dict[str, Any]]) -> str:
    return f"{pool}\t{len(devices)}\t{devices[0]['name'] if devices else ''}\n"
