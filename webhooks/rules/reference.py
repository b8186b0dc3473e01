"""The rules as text: a page of the reference, and what `npufleet explain` says of one of them."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Final

from crds.catalogue import Catalogue
from webhooks.rules import RULES
from webhooks.rules.files import FILE_RULES, FileRule
from webhooks.rules.rule import Example, Layer, Rule
from webhooks.rules.violation import Severity

HEADER: Final = (
    "<!-- Generated from webhooks/rules by `python -m webhooks.rules_page`; change the rules, not this file. -->\n"
)
_INTRODUCTION: Final = """\
`npufleet lint` shows everything that is wrong at once. A server stops at the first layer that finds anything: unknown
fields (kubectl refuses them, one at a time in a server-side apply), then the schema, then the rules between fields,
then the webhook. What only a look at a whole set of files can know, lint alone says. `npufleet explain ID` prints what
stands here of one rule.

An error refuses the object. On a change, an error that the object had before is a warning: only what a change makes
wrong refuses it. Warnings never refuse anything. What depends on other objects in a cluster may have changed a moment
later: such a rule is an error only where nobody could mean it, and the controllers decide alike whatever was admitted.
"""
_WIDTH: Final = 100
AnyRule = Rule | FileRule


def every_rule() -> Mapping[str, AnyRule]:
    """The rules of objects and of files, by id."""
    rules: dict[str, AnyRule] = dict(RULES)
    return dict(sorted((rules | dict(FILE_RULES)).items()))


def layer_of(rule: AnyRule) -> str:
    """Who finds it, in words."""
    return rule.layer.title if rule.layer is not None else "reading the file"


def page(catalogue: Catalogue) -> str:
    """The page of the reference, Markdown."""
    parts = [HEADER, "# Rules\n", _INTRODUCTION]
    for title, rules in _sections():
        parts += [f"## {title}\n", "| Rule | Severity | What holds |", "|---|---|---|"]
        parts += [f"| [{rule.id}](#{rule.id.lower()}) | {rule.severity} | {_cell(rule.title)} |" for rule in rules]
        parts.append("")
    parts += ["## Products of the catalogue\n", ", ".join(f"`{name}`" for name in catalogue.products) + "\n"]
    parts.append("## Each rule\n")
    for rule in every_rule().values():
        parts += [f"### {rule.id}\n", *_entry(rule)]
    return "\n".join(parts).rstrip("\n") + "\n"


def _sections() -> Iterator[tuple[str, list[AnyRule]]]:
    everything = list(every_rule().values())
    for layer in (None, *Layer):
        found = [rule for rule in everything if rule.layer is layer]
        if found:
            title = layer_of(found[0])
            yield title[0].upper() + title[1:], found


def _entry(rule: AnyRule) -> Iterator[str]:
    kinds = f" of {', '.join(rule.kinds)}" if isinstance(rule, Rule) else ""
    yield f"**{rule.title[0].upper()}{rule.title[1:]}.** {_severity(rule)}{kinds}; found by: {layer_of(rule)}.\n"
    yield f"{rule.reason}\n"
    for word, examples in (("Good", rule.good), ("Bad", rule.bad)):
        if examples:
            yield f"{word}:\n"
            for example in examples[:2]:
                yield f"```yaml\n{_shown(example)}\n```\n"


def _severity(rule: AnyRule) -> str:
    return "Error" if rule.severity is Severity.ERROR else "Warning"


def _shown(example: Example | str) -> str:
    if isinstance(example, str):
        return _visible(example)
    parts = [("", example.text), ("# before the change", example.old), ("# beside it", example.others)]
    if example.groups:
        who = f"{example.user}, " if example.user else ""
        parts[0] = (f"# by {who}a member of {', '.join(example.groups)}", example.text)
    shown = [f"{head}\n{_visible(text)}" if head else _visible(text) for head, text in parts if text.strip()]
    return "\n---\n".join(part.removeprefix("---\n") for part in shown)


def _visible(text: str) -> str:
    """Without the indentation of the source, and with what an editor does not show."""
    told = textwrap.dedent(text).strip("\n").replace("\ufeff", "\\ufeff").replace("\t", "\\t")
    return told if len(told) <= 2000 else f"{told[:2000]}\n# and so on"


def explanation(rule: AnyRule) -> list[str]:
    """What `npufleet explain` prints of a rule, as lines."""
    kinds = ", ".join(rule.kinds) if isinstance(rule, Rule) else "files"
    lines = [f"{rule.id}  {rule.title}", ""]
    for label, text in (
        ("severity", rule.severity.value),
        ("speaks of", kinds),
        ("found by", layer_of(rule)),
        ("reason", rule.reason),
    ):
        lines += textwrap.wrap(text, _WIDTH, initial_indent=f"  {label:<11}", subsequent_indent=" " * 13)
    for word, examples in (("good", rule.good[:1]), ("bad", rule.bad[:1])):
        for example in examples:
            lines += ["", f"  {word}:", *(f"    {line}" for line in _shown(example).splitlines())]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
