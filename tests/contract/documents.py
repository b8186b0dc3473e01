"""The documents made from the contract: the table of results, and what the Linux guest does not show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from cli.checkout import ROOT
from tests.contract.statement import Statement

TABLE: Final = ROOT / "docs/reference/host-contract.md"
LIMITS: Final = ROOT / "docs/limits.md"
_BEGIN: Final = "<!-- What the kernel lab does not show: written by python -m tests.contract --write -->"
_END: Final = "<!-- End of what is written -->"

_HEAD: Final = """\
# The host contract

Written by `python -m tests.contract --write`; `make lint` fails when it is stale, or when the two hosts differ.

What a Linux host does when a daemon reads it or writes to it. Each row is one statement: `tests/contract/statements`
does the thing and takes down the raw result, with the same code on the simulated kernel and, as root, in the guest of
the kernel lab. The tests of both planes fail when a host shows another result than its column does. Rule ids are those
of the [simulated kernel](simulated-kernel.md) where it has a rule of that name. The statement is the key phrase of a
fact about Linux (`tests/contract/phrases.py` has them by subject); what it means in the case at hand, the results say.

Results are recorded on purpose: `python -m tests.contract --record-simulated`, and after a run of the kernel lab
`python -m tests.contract --record-linux .kernel-lab/latest-kernel/results`. Where the two differ, Linux is right.

{total} statements: {both} shown alike on both hosts, {simulated} on the simulated kernel alone, {neither} on neither;
[why not](../limits.md#what-the-kernel-lab-does-not-show). Linux is {release}.
"""


def table(statements: Sequence[Statement], simulated: Mapping[str, str], linux: Mapping[str, str], release: str) -> str:
    both = sum(one.id in simulated and one.id in linux for one in statements)
    alone = sum(one.id in simulated and one.id not in linux for one in statements)
    parts = [
        _HEAD.format(
            total=len(statements),
            both=both,
            simulated=alone,
            neither=len(statements) - both - alone,
            release=release or "not recorded",
        )
    ]
    for area, rows in groupby(statements, key=lambda one: one.area):
        parts.append(f"\n## {area}\n\n| rule | statement | simulated kernel | Linux |\n|---|---|---|---|\n")
        for one in rows:
            cells = (_result(results.get(one.id)) for results in (simulated, linux))
            parts.append(f"| `{one.id}` | {_plain(one.phrase)} | {' | '.join(cells)} |\n")
    return "".join(parts)


def with_limits(page: str, statements: Sequence[Statement]) -> str:
    """The page of limits with the list between its two comments renewed; ValueError without them."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{LIMITS} lacks the lines {_BEGIN} and {_END}")
    lacking = [one for one in statements if one.not_on_linux is not None]
    reasons = sorted({one.not_on_linux or "" for one in lacking})
    lines = [
        f"{len(lacking)} of the {len(statements)} statements of the [host contract](reference/host-contract.md):",
        "",
    ]
    for reason in reasons:
        rules = ", ".join(f"`{one.id}`" for one in lacking if one.not_on_linux == reason)
        lines.append(f"- {rules}: {reason}.")
    return f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}"


def stale(pages: Mapping[Path, str]) -> list[Path]:
    """The pages whose files do not say what they should."""
    return [path for path, text in pages.items() if not path.exists() or path.read_text("utf-8") != text]


def _result(raw: str | None) -> str:
    if raw is None:
        return "–"  # noqa: RUF001
    return "`" + raw.replace("|", "\\|") + "`"


def _plain(text: str) -> str:
    """Text for a cell: nothing in it is markup, but code between backticks."""
    parts = text.replace("|", "\\|").split("`")
    for place in range(0, len(parts), 2):
        for sign, instead in (("*", "\\*"), ("_", "\\_"), ("<", "&lt;")):
            parts[place] = parts[place].replace(sign, instead)
    return "`".join(parts)
