"""The rules as a whole: each is shown by a test, and the reference page tells what is true."""

import ast
from pathlib import Path

import pytest

from simulated_node.rules.__main__ import main
from simulated_node.rules.document import all_rules, reference_page
from simulated_node.rules.registry import rule

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs/reference/simulated-kernel.md"


def marked(mark: str) -> set[str]:
    """The rule ids in a mark of any test beside this file."""
    found = set()
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == mark:
                        found |= {ast.literal_eval(argument) for argument in decorator.args}
    return found


def test_every_rule_is_shown_by_a_test() -> None:
    rules = {rule.id for rule in all_rules()}
    assert len(rules) > 50
    assert marked("shows") == rules


def test_every_rule_that_refuses_has_its_good_case_too() -> None:
    refusing = {rule.id for rule in all_rules() if rule.errno is not None}
    # A lagging listener and a match before a busy check are good cases of rules without an errno of their own.
    assert refusing - marked("allows") == set()


def test_every_rule_names_its_source() -> None:
    assert [rule.id for rule in all_rules() if not rule.source or not rule.statement.endswith(".")] == []


def test_reference_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == reference_page(), "run: python -m simulated_node.rules --write"


def test_check_tells_a_stale_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "deep/page.md"
    assert main(["--check", "--page", str(page)]) == 1
    assert main(["--write", "--page", str(page)]) == 0
    assert main(["--check", "--page", str(page)]) == 0
    page.write_text(page.read_text() + "more")
    assert main(["--check", "--page", str(page)]) == 1
    assert "stale" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("identifier", "errno"), [("Bind.x", None), ("bind", None), ("bind.no_such", None), ("bind.x", "ENONSENSE")]
)
def test_malformed_rule_is_refused(identifier: str, errno: str | None) -> None:
    with pytest.raises(ValueError, match=r"kebab|errno"):
        rule(identifier, "Says.", source="nowhere", errno=errno)


def test_rule_cannot_be_registered_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        rule(all_rules()[0].id, "Says.", source="nowhere")
