"""Each format word for word (golden/), and what its readers ask of it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema  # type: ignore[import-untyped]
import pytest

from cli.lint.findings import Finding, Spot
from cli.lint.formats import FORMATS
from cli.lint.report import Report
from tests.builders.linting import run_lint
from webhooks.rules import Severity, Violation

GOLDEN = Path(__file__).parent / "golden"
ENDINGS = {"text": "txt", "json": "json", "sarif": "sarif.json", "junit": "xml", "github": "github.txt"}

# What a reader of SARIF 2.1.0 relies on; the properties and their types are those of the OASIS schema.
SARIF: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "additionalProperties": False,
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name", "rules"],
                                "additionalProperties": False,
                                "properties": {
                                    "name": {"type": "string"},
                                    "version": {"type": "string"},
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id", "shortDescription", "fullDescription", "help"],
                                            "additionalProperties": False,
                                            "properties": {
                                                "id": {"type": "string"},
                                                "shortDescription": {"$ref": "#/$defs/text"},
                                                "fullDescription": {"$ref": "#/$defs/text"},
                                                "help": {"$ref": "#/$defs/text"},
                                                "defaultConfiguration": {
                                                    "type": "object",
                                                    "properties": {"level": {"$ref": "#/$defs/level"}},
                                                    "additionalProperties": False,
                                                },
                                            },
                                        },
                                    },
                                },
                            }
                        },
                    },
                    "invocations": {
                        "type": "array",
                        "items": {"type": "object", "required": ["executionSuccessful"]},
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message", "ruleId", "ruleIndex", "level", "locations"],
                            "additionalProperties": False,
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": {"$ref": "#/$defs/level"},
                                "message": {"$ref": "#/$defs/text"},
                                "partialFingerprints": {
                                    "type": "object",
                                    "additionalProperties": {"type": "string"},
                                },
                                "locations": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "required": ["physicalLocation"],
                                        "additionalProperties": False,
                                        "properties": {
                                            "physicalLocation": {
                                                "type": "object",
                                                "required": ["artifactLocation"],
                                                "additionalProperties": False,
                                                "properties": {
                                                    "artifactLocation": {
                                                        "type": "object",
                                                        "required": ["uri"],
                                                        "properties": {
                                                            "uri": {"type": "string", "pattern": "^[!-~]+$"}
                                                        },
                                                    },
                                                    "region": {
                                                        "type": "object",
                                                        "additionalProperties": False,
                                                        "properties": {
                                                            "startLine": {"type": "integer", "minimum": 1},
                                                            "startColumn": {"type": "integer", "minimum": 1},
                                                        },
                                                    },
                                                },
                                            },
                                            "logicalLocations": {
                                                "type": "array",
                                                "items": {
                                                    "type": "object",
                                                    "additionalProperties": False,
                                                    "properties": {
                                                        "name": {"type": "string"},
                                                        "fullyQualifiedName": {"type": "string"},
                                                        "kind": {"type": "string"},
                                                    },
                                                },
                                            },
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
    "$defs": {
        "text": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}},
        "level": {"enum": ["none", "note", "warning", "error"]},
    },
}

ODD = "a%,:\r\n::error ::x\x1b[31m\u202e<&>\"' \U0001f600"


def odd_report(**settings: Any) -> Report:
    """Names, files and messages with all that could break out of a format."""
    severity = Severity.ERROR
    findings = (
        Finding(Spot(ODD, 3, 4), Violation("NPF-YML-002", severity, "", ODD, ODD), ODD),
        Finding(Spot("kustomize/x.yaml"), Violation("NPF-NP-101", severity, "/spec/a", "wrong"), "NPUNodePolicy/a"),
        Finding(Spot("a.yaml", 1, 1), Violation("NPF-YML-013", Severity.WARNING, "/spec/b", "odd"), "ConfigMap/b"),
    )
    return Report(findings, files=2, objects=3, notes=(ODD,), **settings)


@pytest.mark.parametrize("form", ENDINGS)
def test_the_format_is_as_it_was(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`UPDATE_GOLDEN=1` writes the files anew: read them as a user would before they are committed."""
    monkeypatch.chdir(GOLDEN)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(GOLDEN.parent))
    ended = run_lint("--format", form, "input.yaml")
    said = re.sub(r'"version": "(?!2\.1\.0")[^"]*"', '"version": "VERSION"', ended.out)
    path = GOLDEN / f"input.{ENDINGS[form]}"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(said)
    assert ended.code == 1
    assert said == path.read_text()


@pytest.mark.parametrize("report", [odd_report(), Report((), 0, 0)], ids=["odd", "empty"])
def test_sarif_has_the_form_that_its_readers_rely_on(report: Report) -> None:
    document = json.loads(FORMATS["sarif"](report))
    jsonschema.Draft202012Validator(SARIF).validate(document)
    (run,) = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [rules[result["ruleIndex"]] for result in run["results"]] == [one.rule for one in report.findings]


def test_sarif_of_the_golden_input_has_the_form_too() -> None:
    jsonschema.Draft202012Validator(SARIF).validate(json.loads((GOLDEN / "input.sarif.json").read_text()))


def test_fingerprints_of_sarif_survive_lines_that_are_added_above(tmp_path: Path) -> None:
    def prints() -> list[str]:
        ended = run_lint("--format", "sarif", path)
        return [one["partialFingerprints"]["npufleet/v1"] for one in json.loads(ended.out)["runs"][0]["results"]]

    path = tmp_path / "x.yaml"
    text = (GOLDEN / "input.yaml").read_text().partition("---")[0]
    path.write_text(text)
    before = prints()
    path.write_text(f"# new\n\n{text}")
    assert prints() == before
    assert len(set(before)) == len(before)


def test_github_commands_cannot_be_broken_out_of() -> None:
    lines = FORMATS["github"](odd_report()).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("::error file=a%25%2C%3A%0D%0A%3A%3Aerror %3A%3Ax")
    assert ",line=3,col=4,title=NPF-YML-002::a%25,:%0D%0A::error ::x" in lines[0]
    assert lines[1] == ("::error file=kustomize/x.yaml,title=NPF-NP-101::NPUNodePolicy/a: spec.a: wrong [NPF-NP-101]")
    assert not lines[-1].startswith("::")


@pytest.mark.parametrize("strict", [False, True])
def test_junit_is_xml_whatever_the_names_are(strict: bool) -> None:
    suites = ElementTree.fromstring(FORMATS["junit"](odd_report(is_strict=strict)))
    cases = suites.findall("./testsuite/testcase")
    assert [case.get("file") for case in cases][1:] == ["kustomize/x.yaml", "a.yaml"]
    assert suites.get("failures") == ("3" if strict else "2") == str(len(suites.findall(".//failure")))
    assert len(suites.findall(".//system-out")) == (0 if strict else 1)


def test_junit_of_nothing_found_has_a_case_that_passes() -> None:
    suites = ElementTree.fromstring(FORMATS["junit"](Report((), 3, 5)))
    assert (suites.get("tests"), suites.get("failures")) == ("1", "0")


def test_a_terminal_is_not_steered_by_what_files_say() -> None:
    said = FORMATS["text"](odd_report())
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert len(said.splitlines()) == 5
    assert "\\x1b[31m" in said


def test_json_tells_the_order_of_a_server() -> None:
    order = json.loads((GOLDEN / "input.json").read_text())["order"]
    assert [(one["object"], [step["layer"] for step in one["steps"]]) for one in order] == [
        ("NPUNodePolicy/atoms", ["fields", "schema", "cel", "webhook"])
    ]
