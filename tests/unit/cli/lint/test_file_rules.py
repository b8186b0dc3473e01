"""Files as such: what kubectl would refuse, drop or misread before any server sees an object."""

from __future__ import annotations

import pytest

from cli.lint.sources import LARGEST_BYTES
from tests.builders.linting import CONFIG_MAP, POLICY, found_in, options, places_in, rules_in
from webhooks.rules.files import FILE_RULES

EXAMPLES = [(rule.id, text) for rule in FILE_RULES.values() for text in rule.bad]
GOOD = [(rule.id, text) for rule in FILE_RULES.values() for text in rule.good]


@pytest.mark.parametrize(("rule", "text"), EXAMPLES, ids=[rule for rule, _ in EXAMPLES])
def test_the_bad_example_of_a_rule_breaks_this_rule(rule: str, text: str) -> None:
    assert rule in rules_in(text)


@pytest.mark.parametrize(("rule", "text"), GOOD, ids=[rule for rule, _ in GOOD])
def test_the_good_example_of_a_rule_breaks_none(rule: str, text: str) -> None:
    assert rules_in(text) == []


def test_rules_have_ids_of_their_own_and_say_why_they_are_there() -> None:
    assert all(identity == rule.id for identity, rule in FILE_RULES.items())
    assert all(rule.title and rule.reason.endswith(".") for rule in FILE_RULES.values())


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("a: [1, 2\n", ["1:9 NPF-YML-002"]),
        ("apiVersion: v1\nkind: ConfigMap\n\tdata: {}\n", ["3:1 NPF-YML-002"]),
        (f"{CONFIG_MAP}data: {{a: b}}\ndata: {{c: d}}\nkind: ConfigMap\n", ["6:1 NPF-YML-003", "7:1 NPF-YML-003"]),
        (f"{CONFIG_MAP}--- {{a: b}}\n", ["5:1 NPF-YML-004", "5:5 NPF-YML-006"]),
        (f"{CONFIG_MAP}...\n{CONFIG_MAP.replace('settings', 'b')}", ["6:1 NPF-YML-004"]),
        (f"%YAML 1.1\n---\n{CONFIG_MAP}", ["1:10 NPF-YML-002"]),
        (f"\ufeff{CONFIG_MAP}", ["1:1 NPF-YML-005"]),
        ("- a\n- b\n", ["1:1 NPF-YML-006"]),
        (f"{CONFIG_MAP}---\njust words\n", ["6:1 NPF-YML-006"]),
        ("metadata: {name: x}\n", ["1:1 NPF-YML-006"]),
        ("apiVersion: 1\nkind: ConfigMap\n", ["1:1 NPF-YML-006"]),
        (f"{CONFIG_MAP}---\n{CONFIG_MAP}", ["9:9 NPF-YML-008"]),
        ("{" * 300, ["1:201 NPF-YML-007"]),
    ],
)
def test_faults_of_a_file_have_their_places(text: str, places: list[str]) -> None:
    assert places_in(text) == places


@pytest.mark.parametrize("text", ["", "# only words\n", "---\n", "---\n---\n# two\n---\n", "\n\n", "---", "...\n"])
def test_files_that_say_nothing_are_no_fault(text: str) -> None:
    assert rules_in(text) == []


@pytest.mark.parametrize(
    ("data", "line", "says"),
    [
        (b"a: 1\nb: \xff\xfe\n", 2, "not UTF-8: byte 0xff"),
        ("a: 1\n".encode("utf-16"), 1, "UTF-16"),
        ("a: 1\n".encode("utf-16-le"), 1, "UTF-16"),
        (b"\x7fELF\x02\x01\x01\x00\x00\x00\x90", 1, "binary"),
        (b"a: 1\nb: \x00\n", 2, "binary"),
        (b"a: " + b"x" * LARGEST_BYTES, 0, "more than"),
    ],
)
def test_bytes_that_are_no_text_are_a_finding(data: bytes, line: int, says: str) -> None:
    (found,) = found_in(data)
    assert found.rule in {"NPF-YML-001", "NPF-YML-007"}
    assert found.spot.line == line
    assert says in found.violation.message


def test_lists_of_any_kind_are_their_items() -> None:
    policy = "\n".join(f"  {line}" for line in POLICY.replace("RBLN-CA25", "RBLN-CA2").splitlines())
    text = f"apiVersion: v1\nkind: List\nitems:\n-\n{policy}\n"
    text += "- {apiVersion: v1, kind: ConfigMap, data: {a: 1}}\n- 5\n"
    assert places_in(text) == [
        "14:20 NPF-NP-101",
        "16:3 NPF-YML-009",
        "16:47 NPF-K8S-003",
        "17:3 NPF-YML-006",
    ]
    typed = "apiVersion: v1\nkind: ConfigMapList\nitems:\n- metadata: {name: a}\n  data: {a: 1}\n"
    assert places_in(typed) == ["5:13 NPF-K8S-003"]
    inside = "kind: List\napiVersion: v1\nitems:\n- kind: List\n  apiVersion: v1\n  items: [{a: b}]\n"
    assert places_in(inside) == ["6:11 NPF-YML-006"]


@pytest.mark.parametrize(
    ("written", "rule", "place"),
    [
        ("yes", "NPF-YML-011", "true"),
        ("Off", "NPF-YML-011", "false"),
        ("n", "NPF-YML-011", "false"),
        ("0110", "NPF-YML-012", "72"),
        ("089", "NPF-YML-012", "89"),
        ("0000:27:00.0", "NPF-YML-013", "base 60"),
        ("12:30", "NPF-YML-013", "base 60"),
        ("26e9", "NPF-YML-014", "26000000000"),
    ],
)
def test_scalars_that_readers_disagree_on_are_told(written: str, rule: str, place: str) -> None:
    text = f"apiVersion: example.org/v1\nkind: Thing\nmetadata: {{name: x}}\nspec: {{value: {written}}}\n"
    (found,) = found_in(text, asked=options(allowed=("example.org",)))
    assert (found.rule, found.is_error) == (rule, False)
    assert (found.spot.line, found.spot.column) == (4, 15)
    assert place in found.violation.message
    quoted = text.replace(f"value: {written}", f'value: "{written}"')
    assert rules_in(quoted, asked=options(allowed=("example.org",))) == []


@pytest.mark.parametrize("written", ["true", "False", "null", "~", "10", "-5", "0", "0.5", "1eff", "10de", "yesterday"])
def test_scalars_that_all_readers_agree_on_are_not_told(written: str) -> None:
    text = f"apiVersion: example.org/v1\nkind: Thing\nmetadata: {{name: x}}\nspec: {{value: {written}}}\n"
    assert rules_in(text, asked=options(allowed=("example.org",))) == []


@pytest.mark.parametrize("word", ["on", "No", "y"])
def test_a_key_that_is_a_word_is_told(word: str) -> None:
    text = f"{CONFIG_MAP}data:\n  {word}: 'x'\n"
    (found,) = found_in(text)
    assert (found.rule, found.spot.line, found.spot.column) == ("NPF-YML-011", 6, 3)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("[1250]", 'write "1250"'),
        ("[0110]", 'write "0110": unquoted it is the number 72'),
        ("[26e9]", 'write "26e9": unquoted it is the number 26000000000'),
        ("[on]", 'write "on": unquoted it is true'),
    ],
)
def test_a_trap_that_breaks_the_schema_is_told_once_with_the_way_out(value: str, says: str) -> None:
    text = POLICY.replace("products: [RBLN-CA25]", f'vendors: ["1eff"], devices: {value}').replace(
        "match:\n      vendors", "match: {vendors"
    )
    text = text.replace(value, f"{value}}}")
    (found,) = found_in(text)
    assert found.rule == "NPF-ALL-002"
    assert found.violation.fix == says


def test_an_int_for_a_quantity_is_told_with_quotes() -> None:
    quota = "apiVersion: npufleet.io/v1alpha1\nkind: VNPUQuota\nmetadata: {name: q, namespace: team}\n"
    (found,) = found_in(f"{quota}spec: {{limits: {{memory: 1073741824}}}}\n")
    assert (found.rule, found.spot.line, found.spot.column) == ("NPF-ALL-002", 4, 25)
    assert found.violation.fix == 'write "1073741824"'


def test_modes_of_files_may_be_octal() -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c}]\n"
    assert rules_in(f"{pod}  volumes: [{{name: v, configMap: {{name: m, defaultMode: 0644}}}}]\n") == []


def test_aliases_are_read_and_their_faults_stand_at_the_anchor() -> None:
    text = POLICY.replace("  - name: cards\n", "  - &rule\n    name: cards\n    limit: 1\n")
    text += "  - <<: *rule\n    name: others\n    limit: 2\n  - {<<: *rule, name: third, mode: passthru}\n"
    assert places_in(text) == ["17:36 NPF-ALL-004"]
    assert places_in(text.replace("RBLN-CA25", "RBLN-CA2")) == ["12:18 NPF-NP-101"] * 3 + ["17:36 NPF-ALL-004"]


def test_a_bomb_of_aliases_is_a_finding() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    assert "NPF-YML-007" in rules_in("\n".join(lines))
