"""``python -m webhooks.rules_page [--check]``: write the reference page of the rules, or tell that it is stale."""

import argparse
import sys
from pathlib import Path

import webhooks
from crds.catalogue import load_catalogue
from webhooks.rules.reference import page

PAGE = Path("docs", "reference", "rules.md")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 0 when the page is as generated, 1 when ``--check`` found that it is not."""
    parser = argparse.ArgumentParser(prog="python -m webhooks.rules_page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is stale")
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(webhooks.__file__).parent.parent,
        help="root of the repository (default: ours)",
    )
    options = parser.parse_args(arguments)
    path, text = options.root / PAGE, page(load_catalogue())
    is_fresh = path.is_file() and path.read_bytes() == text.encode()
    if options.check:
        if not is_fresh:
            print(f"{PAGE}: stale; run `python -m webhooks.rules_page` and commit the result", file=sys.stderr)
        return 0 if is_fresh else 1
    if not is_fresh:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"{PAGE}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
