"""The reference of the API as Markdown: one page per kind, and an index."""

from typing import Final

from crds.generator.fields import FieldDoc, field_docs
from crds.models.base import API_VERSION
from crds.models.condition_reference import CONDITIONS, REASONS, ConditionDoc, ReasonTable
from crds.models.kinds import CATEGORY, KINDS, Kind

HEADER: Final = "<!-- Generated from crds/models by `python -m crds.generator`; change the models, not this file. -->\n"
INDEX: Final = "README.md"


def reference_pages() -> dict[str, str]:
    """Text by file name: one page per kind, and the index."""
    return {page_name(kind): _page(kind) for kind in KINDS} | {INDEX: _index()}


def page_name(kind: Kind) -> str:
    """The file name of a kind's page."""
    return f"{kind.singular}.md"


def _index() -> str:
    lines = [
        HEADER,
        "# API reference\n",
        f"Group and version: `{API_VERSION}`. `kubectl get {CATEGORY}` lists objects of every kind.\n",
        "The schema carries no defaults: an object read back equals the object that was written. Where a field is "
        "absent, the effective value that its page names holds; `npufleet explain -f FILE` shows an object with all "
        "of them filled in.\n",
        "| Kind | Short name | Scope | What it says |",
        "|---|---|---|---|",
    ]
    for kind in KINDS:
        meaning = " ".join((kind.model.__doc__ or "").split())
        lines.append(f"| [{kind.name}]({page_name(kind)}) | `{kind.short_name}` | {_scope(kind)} | {_cell(meaning)} |")
    return "\n".join(lines) + "\n"


def _page(kind: Kind) -> str:
    docs = field_docs(kind)
    parts = [
        HEADER,
        f"# {kind.name}\n",
        " ".join((kind.model.__doc__ or "").split()) + "\n",
        f"`{API_VERSION}`, {_scope(kind).lower()}, `kubectl get {kind.short_name}`.\n",
        "## Spec\n",
        *_table([doc for doc in docs if doc.path.startswith("spec")], effective=True),
        *_rules(docs),
        "\n## Status\n",
        *_table([doc for doc in docs if doc.path.startswith("status")], effective=False),
        *_conditions(CONDITIONS.get(kind.name, ())),
        *_reasons(REASONS.get(kind.name, ())),
        *_columns(kind),
    ]
    return "\n".join(parts) + "\n"


def _table(docs: list[FieldDoc], *, effective: bool) -> list[str]:
    head = ["Field", "Type", *(["When absent"] if effective else []), "Constraints", "Meaning"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for doc in docs:
        when_absent = [("required" if doc.required else doc.effective or "")] if effective else []
        cells = [f"`{doc.path}`", doc.type, *when_absent, "; ".join(doc.constraints), doc.meaning]
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return lines


def _rules(docs: tuple[FieldDoc, ...]) -> list[str]:
    with_rules = [doc for doc in docs if doc.rules]
    if not with_rules:
        return []
    lines = ["\n### Rules between fields\n", "| At | Message | CEL |", "|---|---|---|"]
    for doc in with_rules:
        lines += [f"| `{rule.at}` | {_cell(rule.message)} | `{_cell(rule.expression)}` |" for rule in doc.rules]
    return lines


def _conditions(conditions: tuple[ConditionDoc, ...]) -> list[str]:
    if not conditions:
        return []
    lines = ["\n## Conditions\n", "| Condition | Status | Reason | Meaning |", "|---|---|---|---|"]
    for condition in conditions:
        lines.append(f"| **{condition.type}** in `{condition.holder}` | | | {_cell(condition.meaning)} |")
        lines += [
            f"| | {reason.status} | `{reason.reason}` | {_cell(reason.meaning)} |" for reason in condition.reasons
        ]
    return lines


def _reasons(tables: tuple[ReasonTable, ...]) -> list[str]:
    lines = []
    for table in tables:
        lines += [f"\n## Reasons in `{table.field}`\n", f"{table.meaning}\n"]
        has_states = any(reason.status for reason in table.reasons)
        lines += (
            ["| Reason | State | Meaning |", "|---|---|---|"] if has_states else ["| Reason | Meaning |", "|---|---|"]
        )
        for reason in table.reasons:
            state = f" {reason.status} |" if has_states else ""
            lines.append(f"| `{reason.reason}` |{state} {_cell(reason.meaning)} |")
    return lines


def _columns(kind: Kind) -> list[str]:
    lines = ["\n## Columns\n", "| Column | Shown | Meaning |", "|---|---|---|"]
    for column in kind.columns:
        shown = "with `-o wide`" if column.priority else "always"
        lines.append(f"| {column.name.upper()} | {shown} | {_cell(column.description)} |")
    return lines


def _scope(kind: Kind) -> str:
    return "Namespaced" if kind.namespaced else "Cluster-scoped"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
