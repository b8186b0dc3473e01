"""Whatever the bytes are, the linter ends with findings that have places, in every format, and with no traceback."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.lint.fixes import fixes
from cli.lint.formats import FORMATS
from cli.lint.formats.text import line
from cli.lint.linter import lint
from cli.lint.report import Report
from cli.lint.sources import Source, read_text
from crds.yaml_documents import YAMLError, read_all, read_documents
from tests.builders.examples import at_least
from tests.builders.linting import CONFIG_MAP, NAME, POLICY, options
from tests.builders.samples import FOLDER
from webhooks.rules.files import FILE_RULES

SAMPLES = [path.read_bytes() for path in sorted(FOLDER.rglob("*.yaml"))]
SAMPLES += [text.encode() for rule in FILE_RULES.values() for text in (*rule.good, *rule.bad)]
PIECES = [
    *(b"\n---\n", b"...\n", b"\t", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b"\xc2\x85", b"\xe2\x80\xa8"),
    *(b"&a ", b"*a", b"<<: *a\n", b"!!int ", b"!x ", b"? ", b": ", b"- ", b"{", b"}", b"[", b"]", b"'", b'"'),
    *(b"|\n", b">\n", b"#", b"%YAML 1.1\n", b"yes", b"0x", b".inf", b"1e999", b"~", b"\\ud83d"),
    *(b"items: []\n", b"kind: List\n", b"apiVersion: v1\n", b"metadata: 5\n"),
]
KEYS = ["apiVersion", "kind", "metadata", "spec", "name", "labels", "items", "devices", "match", "products", "mode"]
EXAMPLES = 700
at_random = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


def everything(data: bytes) -> None:
    """Lint, all formats, fixes; what is found has a place in the file."""
    text, findings = read_text(NAME, data)
    if text is None:
        assert findings
        return
    lines = text.count("\n") + 1
    source = Source(NAME, text, Path(NAME))
    outcome = lint([source], options(), base=[source] if len(data) % 2 else [])
    found = [*findings, *outcome.findings]
    for one in found:
        assert 0 <= one.spot.line <= lines + text.count("\r") + text.count("\x85") + text.count("\u2028") + 1
        assert "\n" not in line(one)
    report = Report(tuple(found), 1, len(outcome.objects))
    for write in FORMATS.values():
        write(report).encode()
    for fixed in fixes(outcome, found):
        assert len(read_all(fixed.text).faults) <= len(read_all(text).faults)
    try:
        documents = read_documents(text, NAME)
    except YAMLError:
        assert read_all(text).faults
    else:
        assert [one.content for one in documents] == [one.content for one in read_all(text).documents]


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["yes", "0110", "0000:27:00.0", "1Gi", "RBLN-CA25", "NPUNodePolicy", "v1", "In", "Passthrough"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS) | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def mutated(data: bytes, dice: random.Random, changes: int) -> bytes:
    """A sample with a few accidents: pieces put in, taken out, put over, or the tail of another sample."""
    for _ in range(changes):
        start = dice.randrange(len(data) + 1)
        match dice.randrange(4):
            case 0:
                data = data[:start] + dice.choice(PIECES) + data[start:]
            case 1:
                data = data[:start] + data[start + dice.randrange(1, 20) :]
            case 2:
                data = data[:start] + dice.choice(PIECES) + data[start + 1 :]
            case _:
                other = dice.choice(SAMPLES)
                data = data[:start] + other[dice.randrange(len(other) + 1) :]
    return data


def test_arbitrary_bytes() -> None:
    with at_least(EXAMPLES, "lint of arbitrary bytes") as examples:

        @at_random
        @given(
            st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
        )
        def holds(data: bytes) -> None:
            examples.one()
            everything(data)

        holds()


def test_mutated_samples() -> None:
    with at_least(EXAMPLES, "lint of mutated samples") as examples:

        @at_random
        @given(st.sampled_from(SAMPLES), st.integers(min_value=0), st.integers(min_value=1, max_value=4))
        def holds(data: bytes, seed: int, changes: int) -> None:
            examples.one()
            everything(mutated(data, random.Random(seed), changes))

        holds()


def test_objects_with_arbitrary_parts() -> None:
    with at_least(EXAMPLES, "lint of objects with arbitrary parts") as examples:

        @at_random
        @given(st.sampled_from([POLICY, CONFIG_MAP]), st.sampled_from(["metadata", "spec", "status", "data"]), VALUES)
        def holds(text: str, field: str, value: Any) -> None:
            examples.one()
            (document,) = read_documents(text, NAME)
            content = document.content | {field: value}
            everything(yaml.safe_dump(content, allow_unicode=True).encode("utf-8", "replace"))

        holds()
