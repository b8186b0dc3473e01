"""What people read of each sample, word for word: a text that changes is read again by somebody before it is kept."""

import sys
from pathlib import Path

from crds.catalogue import load_catalogue
from crds.models.kinds import BY_NAME
from tests.builders.samples import INVALID, WARNED
from webhooks.rules import Subject
from webhooks.rules.examples import view_of
from webhooks.rules.judge import judge

TEXTS = Path(__file__).with_name("texts.txt")


def told() -> str:
    catalogue, lines = load_catalogue(), []
    for sample in (*INVALID, *WARNED):
        lines.append(f"{sample.path.parent.name}/{sample.name}")
        found = judge(
            Subject.of(BY_NAME[sample.object["kind"]], sample.object), view_of(list(sample.others), catalogue)
        )
        lines += [f"  {violation.severity}: {violation.line}" for violation in found]
    return "\n".join(lines) + "\n"


def test_texts_are_those_that_somebody_has_read() -> None:
    assert told() == TEXTS.read_text(encoding="utf-8"), "read what has changed, then run this file with --write"


if __name__ == "__main__" and "--write" in sys.argv:
    TEXTS.write_text(told(), encoding="utf-8")
