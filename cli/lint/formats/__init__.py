"""How a report is written: one module per reader."""

from collections.abc import Callable, Mapping
from typing import Final

from cli.lint.formats import github, junit, sarif, structured, text
from cli.lint.report import Report

FORMATS: Final[Mapping[str, Callable[[Report], str]]] = {
    "text": text.write,
    "json": structured.write,
    "sarif": sarif.write,
    "junit": junit.write,
    "github": github.write,
}
