"""YAML is read as kubectl reads it, not as a YAML 1.1 library would."""

import pytest

from crds.yaml_documents import YAMLError, read_documents, scalar


# What `kubectl create --dry-run=client -o json` made of each unquoted scalar (kubectl 1.37).
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0000:27:00.0", "0000:27:00.0"),
        ("1:30", "1:30"),
        ("190:20:30.15", "190:20:30.15"),
        ("1eff", "1eff"),
        ("10de", "10de"),
        ("19e5", 1900000),
        ("26e9", 26000000000),
        ("1e30", 1e30),
        ("1e999", "1e999"),
        ("9" * 5000, "9" * 5000),
        ("00e1", 0),
        ("1250", 1250),
        ("0123", 83),
        ("0100", 64),
        ("089", 89),
        ("0o17", 15),
        ("0x10", 16),
        ("0x1F_F", 511),
        ("+0x1F", 31),
        ("-0o7", -7),
        ("0b11", 3),
        ("1_000", 1000),
        ("_1", "_1"),
        ("+5", 5),
        ("-0", 0),
        ("99999999999999999999", 100000000000000000000),
        (".5", 0.5),
        ("5.", 5),
        ("1.0", 1),
        ("1.5_0", 1.5),
        ("0.1e-2", 0.001),
        ("2026-11-30", "2026-11-30"),
        ("2026-11-30T12:00:00Z", "2026-11-30T12:00:00Z"),
        ("y", True),
        ("n", False),
        ("On", True),
        ("oFF", "oFF"),
        ("~", None),
        ("", None),
        ("NULL", None),
        ("=", "="),
        ("1,000", "1,000"),
        ("0200:0110", "0200:0110"),
    ],
)
def test_an_unquoted_scalar_is_what_kubectl_makes_of_it(text: str, value: object) -> None:
    found = scalar(text)
    assert found == value
    assert type(found) is type(value)
    (document,) = read_documents(f"v: {text}", "f")
    assert document.content == {"v": value}


def test_quotes_and_tags_are_kept_to() -> None:
    text = "a: '1250'\nb: \"y\"\nc: !!str 5\nd: &x !!str 7\ne: !!int '5'\nf: |\n  1\ng: *x"
    (document,) = read_documents(text, "f")
    assert document.content == {
        "a": "1250", "b": "y", "c": "5", "d": "7", "e": 5, "f": "1\n", "g": "7",
    }  # fmt: skip


def test_keys_are_strings() -> None:
    (document,) = read_documents("{1: a, true: b, 1.5: c, '2': d}", "f")
    assert document.content == {"1": "a", "true": "b", "1.5": "c", "2": "d"}


def test_merge_keys_bring_in_what_is_not_stated() -> None:
    (document,) = read_documents("a: &a {p: 1, q: 1}\nb: &b {q: 2, r: 2}\nc: {<<: [*a, *b], p: 9}", "f")
    assert document.content["c"] == {"p": 9, "q": 1, "r": 2}


def test_documents_are_told_with_their_lines_and_empty_ones_left_out() -> None:
    found = read_documents("# only words\n---\na: 1\n---\n---\n# two\n\nb: 2\n...\n", "f")
    assert [(document.content, document.line) for document in found] == [({"a": 1}, 3), ({"b": 2}, 8)]
    assert read_documents("", "f") == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: 1\nb: 2\na: 3", r"f\.yaml:3:1: the key 'a' is there twice"),
        ("a: {x: 1, x: 2}", r"f\.yaml:1:11: the key 'x' is there twice"),
        ("1: a\n'1': b", r"f\.yaml:2:1: the key '1' is there twice"),
        ("a: [", r"f\.yaml:1:5: "),
        ("a: 1\n\tb: 2", r"f\.yaml:2:1: "),
        ("a: &x [*x]", r"f\.yaml:1:4: an anchor contains itself"),
        ("a: &x {<<: *x}", r"f\.yaml:1:4: an anchor contains itself"),
        ("a: {<<: 1}", r"f\.yaml:1:9: << needs a map"),
        ("a: *nothing", r"f\.yaml:1:4: "),
        ("a: !!binary aGk=", r"f\.yaml:1:4: the tag .* has no place"),
        ("a: !Ref x", r"f\.yaml:1:4: the tag !Ref has no place"),
        ("a: !!int x", r"f\.yaml:1:4: 'x' is no int"),
        ("[a]: 1", r"f\.yaml:1:1: a key must be a string"),
        ("~: 1", r"f\.yaml:1:1: a key must be a string"),
        ("a: \x00", r"f\.yaml:1:4: a control character \(U\+0000\) has no place in YAML"),
        ("a: .inf", r"f\.yaml:1:4: .inf is a number that JSON does not have; quote it"),
        ("[" * 9000, r"f\.yaml:1:[0-9]+: nested too deeply"),
        ("- " * 9000, r"f\.yaml:1:[0-9]+: nested too deeply"),
        ("a: 1\n--- {b: 2}\n", r"f\.yaml:2:1: kubectl refuses a document that starts in the line of its separator"),
        ("a: 1\n...\nb: 2\n", r"f\.yaml:3:1: kubectl drops without a word what follows"),
        ("%YAML 1.1\n---\na: 1\n", r"f\.yaml:1:"),
    ],
)
def test_a_text_that_kubectl_would_refuse_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(YAMLError, match=f"^{place}"):
        read_documents(text, "f.yaml")


def test_aliases_that_multiply_are_refused_and_not_expanded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    with pytest.raises(YAMLError, match="aliases of aliases"):
        read_documents("\n".join(lines), "f.yaml")
