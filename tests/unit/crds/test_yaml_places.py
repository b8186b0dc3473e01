"""Everything in a YAML text has its line and column, and one fault does not hide the next."""

import pytest
import yaml

from crds import yaml_nodes
from crds.yaml_documents import Document, find, find_key, read_all
from crds.yaml_nodes import DEEPEST, FaultKind, Node

TEXT = """\
# comment
a: 1
b:
  - x: "two"
    v: [3, {z: four}]
  - |
    several
c: &shared {d: 5}
e: *shared
f: {<<: *shared, g: 6}
"""


def the_root(text: str) -> Node:
    (document,) = read_all(text).documents
    assert document.root is not None
    return document.root


@pytest.mark.parametrize(
    ("steps", "place"),
    [
        (("a",), (2, 4)),
        (("b",), (3, 1)),
        (("b", "0"), (4, 5)),
        (("b", "0", "x"), (4, 8)),
        (("b", "0", "v"), (5, 5)),
        (("b", "0", "v", "0"), (5, 9)),
        (("b", "0", "v", "1", "z"), (5, 16)),
        (("b", "1"), (6, 5)),
        (("e", "d"), (8, 16)),
        (("f", "d"), (8, 16)),
        (("f", "g"), (10, 21)),
    ],
)
def test_a_value_stands_where_it_is_written(steps: tuple[str, ...], place: tuple[int, int]) -> None:
    found, is_there = find(the_root(TEXT), steps)
    assert is_there
    assert (found.line, found.column) == place


@pytest.mark.parametrize(
    ("steps", "place"),
    [
        (("zz",), (2, 1)),
        (("b", "0", "zz"), (4, 5)),
        (("b", "7", "x"), (3, 1)),
        (("a", "x", "y"), (2, 4)),
        (("b", "0", "v", "1", "q", "r"), (5, 12)),
    ],
)
def test_what_is_not_there_stands_where_its_nearest_parent_does(steps: tuple[str, ...], place: tuple[int, int]) -> None:
    found, is_there = find(the_root(TEXT), steps)
    assert not is_there
    assert (found.line, found.column) == place


def test_a_key_has_a_place_of_its_own() -> None:
    place = find_key(the_root(TEXT), ("b", "0", "v"))
    assert place is not None
    assert (place.line, place.column) == (5, 5)
    assert find_key(the_root(TEXT), ("b", "0")) is None
    assert find_key(the_root(TEXT), ("b", "9", "x")) is None


def test_indices_lead_to_the_text_that_is_written() -> None:
    text = "\ufeff# é\r\na: [ 'x', y ]\r\n---\r\nb: \U0001f600\r\n"
    first, second = read_all(text).documents
    for document, steps, written in ((first, ("a", "0"), "'x'"), (first, ("a", "1"), "y"), (second, ("b",), "😀")):
        assert document.root is not None
        place, _ = find(document.root, steps)
        assert text[place.start : place.end] == written


def test_every_document_is_read_though_one_is_broken() -> None:
    reading = read_all("a: 1\n---\nb: [\n---\nc: 3\nc: 4\n---\n\td: 1\n---\ne: 5\n")
    assert [(document.content, document.line) for document in reading.documents] == [
        ({"a": 1}, 1), ({"c": 4}, 5), ({"e": 5}, 10),
    ]  # fmt: skip
    assert [(fault.kind, fault.line, fault.column) for fault in reading.faults] == [
        (FaultKind.SYNTAX, 3, 5),
        (FaultKind.REPEATED_KEY, 6, 1),
        (FaultKind.SYNTAX, 8, 1),
    ]


def test_every_repeated_key_is_told_with_the_line_that_has_it_first() -> None:
    faults = read_all("a: 1\nb: {x: 1, x: 2, 'x': 3}\na: 2\ntrue: 1\n'true': 2\n").faults
    assert [(fault.line, fault.column, fault.message, fault.fix) for fault in faults] == [
        (2, 11, "the key 'x' is there twice", "line 2 has it first"),
        (2, 17, "the key 'x' is there twice", "line 2 has it first"),
        (3, 1, "the key 'a' is there twice", "line 1 has it first"),
        (5, 1, "the key 'true' is there twice", "line 4 has it first"),
    ]


def test_several_faults_of_one_document_are_told_at_once() -> None:
    faults = read_all("a: *nothing\nb: !Ref x\nc: .inf\nd: {x: 1, x: 1}\n").faults
    assert [fault.line for fault in faults] == [1, 2, 3, 4]


def test_json_that_kubectl_reads_is_read() -> None:
    (document,) = read_all('{\n\t"a": "\\ud83d\\ude00 \\/ \\u00e9",\n\t"b": [1e3, -0.5, null, true]\n}').documents
    assert document.content == {"a": "😀 / é", "b": [1000, -0.5, None, True]}


@pytest.mark.parametrize("depth", [DEEPEST - 1, DEEPEST + 1])
@pytest.mark.parametrize(("opens", "closes"), [("[", "]"), ("{a: ", "}"), ("- ", "")])
def test_depth_is_bounded(depth: int, opens: str, closes: str) -> None:
    reading = read_all(opens * depth + "1" + closes * depth)
    assert [fault.kind for fault in reading.faults] == ([] if depth < DEEPEST else [FaultKind.SIZE])


def test_merge_keys_of_merge_keys_are_not_followed_again_and_again() -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 30)]
    reading = read_all("\n".join(lines))
    assert reading.faults == []
    assert reading.documents[0].content["a29"] == {"x": 1}


def test_places_are_the_same_without_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(documents: list[Document]) -> list[object]:
        return [(document.content, document.line, document.root) for document in documents]

    with_libyaml = [str(document) for document in told(read_all(TEXT).documents)]
    monkeypatch.setattr(yaml_nodes, "_LOADER", yaml.SafeLoader)
    assert [str(document) for document in told(read_all(TEXT).documents)] == with_libyaml
    assert [(fault.line, fault.column) for fault in read_all("a: [\n---\nb: 1\n\tc: 2\n").faults] == [(1, 5), (4, 1)]
