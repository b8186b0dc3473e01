"""``python -m simulated_node.rules``: write the reference page, or check that it is current."""

import argparse
import sys
from pathlib import Path

from simulated_node.rules.document import reference_page

_PAGE = Path(__file__).parents[3] / "docs/reference/simulated-kernel.md"


def main(arguments: list[str] | None = None) -> int:
    """0: written, or current; 1: stale."""
    parser = argparse.ArgumentParser(prog="python -m simulated_node.rules", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the page")
    what.add_argument("--check", action="store_true", help="exit with 1 when the page is not what would be written")
    parser.add_argument("--page", type=Path, default=_PAGE, metavar="FILE", help="the page (default: the repository's)")
    options = parser.parse_args(arguments)
    page = reference_page()
    if options.write:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        options.page.write_text(page, "utf-8")
        return 0
    if options.page.exists() and options.page.read_text("utf-8") == page:
        return 0
    print(f"{options.page} is stale: run python -m simulated_node.rules --write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
