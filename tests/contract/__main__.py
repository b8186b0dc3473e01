"""``python -m tests.contract``: record results, write the documents made from them, or check that all is well."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.contract.comparison import faults
from tests.contract.documents import LIMITS, TABLE, stale, table, with_limits
from tests.contract.recording import record_linux, record_simulated
from tests.contract.results import LINUX, RELEASE, SIMULATED, read_results
from tests.contract.statement import all_statements


def pages() -> dict[Path, str]:
    statements = all_statements()
    linux = read_results(LINUX)
    release = linux.pop(RELEASE, "")
    return {
        TABLE: table(statements, read_results(SIMULATED), linux, release),
        LIMITS: with_limits(LIMITS.read_text("utf-8"), statements),
    }


def check() -> list[str]:
    linux = read_results(LINUX)
    linux.pop(RELEASE, None)
    found = faults(all_statements(), read_results(SIMULATED), linux)
    return found + [f"{path} is stale: run python -m tests.contract --write" for path in stale(pages())]


def main(arguments: list[str] | None = None) -> int:
    """0: recorded, written, or all is well; 1: something is wrong, told line by line."""
    parser = argparse.ArgumentParser(prog="python -m tests.contract", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the documents from the recorded results")
    what.add_argument("--check", action="store_true", help="exit with 1 when the hosts differ or a document is stale")
    what.add_argument("--record-simulated", action="store_true", help="run all on the simulated kernel and record it")
    what.add_argument(
        "--record-linux",
        type=Path,
        metavar="DIR",
        help="record what a run of the kernel lab showed: the results directory of that run",
    )
    options = parser.parse_args(arguments)
    if options.record_simulated:
        with tempfile.TemporaryDirectory() as directory:
            record_simulated(Path(directory))
    elif options.record_linux is not None:
        record_linux(options.record_linux)
    elif options.write:
        for path, text in pages().items():
            path.write_text(text, "utf-8")
    else:
        found = check()
        for fault in found:
            print(fault, file=sys.stderr)
        return 1 if found else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
