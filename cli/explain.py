"""`npufleet explain`: what a kind, a field or a rule means, and what an object says with every effective value."""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cli.errors import CommandError, ExitCode
from crds.catalogue import load_catalogue
from crds.effective import Effective, effective_spec
from crds.generator.fields import FieldDoc, field_docs
from crds.models.base import API_VERSION, GROUP, faults_of
from crds.models.condition_reference import CONDITIONS, REASONS, ReasonDoc
from crds.models.kinds import BY_NAME, KINDS, Kind
from crds.near_matches import did_you_mean
from crds.yaml_documents import Document, YAMLError, read_documents, scalar

DESCRIPTION = """\
Explain a kind or one of its fields: meaning, type, effective value when absent, constraints, rules. With the id of a
rule, as it stands in brackets at the end of a message: what has to hold, why, and an example of each.
With -f, show the objects of a file with every effective value filled in. A value that the file does not give is marked
`# effective`; a field whose absence means something that no value says is shown as a comment.
"""
EXAMPLES = """\
examples:
  npufleet explain npunp                                 the kind NPUNodePolicy
  npufleet explain NPUNodePolicy.spec.devices.match      a field and what is below it
  npufleet explain npunp.status.conditions               conditions and reasons
  npufleet explain NPF-NP-103                            a rule that a message names
  npufleet explain products                              names that a match may ask for
  npufleet explain -f policy.yaml                        what the file says in full (- reads stdin)
"""
_WIDTH = 100
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./+-]*")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `explain` to the command line."""
    parser = subparsers.add_parser(
        "explain",
        help="tell what a kind, a field, a rule or a whole object means",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "subject",
        nargs="?",
        metavar="KIND[.field.path]|RULE",
        help="a kind by any of its names, a field, or a rule's id",
    )
    what.add_argument("-f", "--filename", metavar="FILE", help="a file with objects; - reads stdin")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.filename is not None:
        return _explain_file(arguments.filename)
    print("\n".join(explain_subject(arguments.subject)))
    return ExitCode.CLEAN


def explain_subject(subject: str) -> list[str]:
    """The explanation of ``KIND``, ``KIND.field.path`` or the id of a rule as lines.

    Raises CommandError with exit code 2 and the near matches when there is no such kind, field or rule.
    """
    subject = subject.strip()
    if subject.upper().strip("[]").startswith("NPF-"):
        return _rule(subject.upper().strip("[] "))
    if subject.casefold() == "products":
        return _products()
    word, _, path = subject.partition(".")
    kind = _kind(word)
    docs = {_key(doc.path): doc for doc in field_docs(kind)}
    if not path:
        return [*_heading(kind), "", "fields:", *_overview(list(docs.values()), depth=1)]
    key = _key(re.sub(r"\[\d+\]", "[]", path))  # as the API server names a field in its errors
    if key not in docs and f"spec.{key}" in docs:
        key = f"spec.{key}"
    if key not in docs:
        raise CommandError(_unknown_field(kind, key, list(docs)), ExitCode.USAGE)
    below = [doc for name, doc in docs.items() if name.startswith(f"{key}.")]
    lines = [f"{kind.name}.{docs[key].path}", "", *_details(docs[key])]
    if below:
        lines += ["", "fields:", *_overview(below, depth=key.count(".") + 1)]
    return [*lines, *_conditions(kind, key), *_reasons(kind, docs[key].path)]


def _rule(id: str) -> list[str]:
    # The rules and the CEL library take most of a second to import: no other command shall pay for them.
    from webhooks.rules.reference import every_rule, explanation

    rules = every_rule()
    if id not in rules:
        raise CommandError(f"there is no rule {id}{did_you_mean(id, rules)}", ExitCode.USAGE)
    return explanation(rules[id])


def _products() -> list[str]:
    found = load_catalogue()
    lines = ["products of the catalogue, by vendor", ""]
    for vendor in found.vendors.values():
        lines.append(f"{vendor.name} ({vendor.id})")
        own = (product for product in found.products.values() if product.vendor.id == vendor.id)
        lines += [f"  {product.name}{f'  {product.title}' if product.title else ''}" for product in own]
    return lines


def _kind(word: str) -> Kind:
    names = {
        name.casefold(): kind for kind in KINDS for name in (kind.name, kind.plural, kind.singular, kind.short_name)
    }
    if word.casefold() in names:
        return names[word.casefold()]
    known = [name for kind in KINDS for name in (kind.name, kind.short_name)]
    hint = did_you_mean(word, known) or f"; there are {', '.join(kind.name for kind in KINDS)}"
    raise CommandError(f"nothing is known of {word!r}{hint}", ExitCode.USAGE)


def _unknown_field(kind: Kind, key: str, known: list[str]) -> str:
    holder, _, last = key.rpartition(".")
    siblings = [name for name in known if name.rpartition(".")[0] == holder]
    hint = did_you_mean(key, siblings or known) or did_you_mean(f"spec.{key}", known)
    if not hint:
        hint = did_you_mean(last, [name.rpartition(".")[2] for name in siblings])
    return f"{kind.name} has no field {key!r}{hint}"


def _key(path: str) -> str:
    return path.replace("[]", "").replace("{}", "")


def _heading(kind: Kind) -> list[str]:
    scope = "namespaced" if kind.namespaced else "cluster-scoped"
    meaning = " ".join((kind.model.__doc__ or "").split())
    return [
        f"{kind.name} ({API_VERSION}, {scope}; {kind.plural}, {kind.short_name})",
        "",
        *textwrap.wrap(meaning, _WIDTH, initial_indent="  ", subsequent_indent="  "),
    ]


def _details(doc: FieldDoc) -> Iterator[str]:
    yield from _entry("meaning", doc.meaning)
    yield from _entry("type", doc.type)
    if doc.path.startswith("spec"):
        yield from _entry("when absent", "refused: the field is required" if doc.required else doc.effective or "")
    for constraint in doc.constraints:
        yield from _entry("constraint", constraint)
    for rule in doc.rules:
        yield from _entry("rule", f"{rule.message} (at {rule.at})")


def _entry(label: str, text: str) -> list[str]:
    if not text:
        return []
    return textwrap.wrap(
        text, _WIDTH, initial_indent=f"  {label:<13}", subsequent_indent=" " * 15, break_on_hyphens=False
    )


def _overview(docs: list[FieldDoc], *, depth: int) -> Iterator[str]:
    """Fields down to ``depth`` dots, one line each."""
    shown = [doc for doc in docs if _key(doc.path).count(".") <= depth]
    width = max(len(doc.path) for doc in shown)
    for doc in shown:
        absent = "required" if doc.required else f"absent: {doc.effective}" if doc.effective else ""
        kind = f"{doc.type}, {absent}" if absent else doc.type
        yield f"  {doc.path:<{width}}  {kind}"


def _conditions(kind: Kind, key: str) -> Iterator[str]:
    for condition in CONDITIONS.get(kind.name, ()):
        if key == f"{condition.holder}.conditions":
            yield ""
            yield from textwrap.wrap(f"condition {condition.type}: {condition.meaning}", _WIDTH)
            yield from _meanings(condition.reasons)


def _reasons(kind: Kind, path: str) -> Iterator[str]:
    for table in REASONS.get(kind.name, ()):
        if path == table.field:
            yield ""
            yield from textwrap.wrap(table.meaning, _WIDTH)
            yield from _meanings(table.reasons)


def _meanings(reasons: Iterable[ReasonDoc]) -> Iterator[str]:
    for reason in reasons:
        status = f" ({reason.status})" if reason.status else ""
        yield from textwrap.wrap(
            f"{reason.reason}{status}: {reason.meaning}", _WIDTH, initial_indent="  ", subsequent_indent="      "
        )


def _explain_file(filename: str) -> int:
    name = "stdin" if filename == "-" else filename
    try:
        text = sys.stdin.read() if filename == "-" else Path(filename).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"{name} cannot be read: {getattr(error, 'strerror', None) or error}", ExitCode.USAGE
        ) from None
    try:
        documents = read_documents(text, name)
    except YAMLError as error:
        raise CommandError(str(error), ExitCode.FINDINGS) from None
    shown, faults = [], []
    for document in documents:
        try:
            shown.append("\n".join(explain_object(document)))
        except ValueError as error:
            faults += [f"{name}:{document.line}: {line}" for line in str(error).splitlines()]
    if shown:
        print("\n---\n".join(shown))
    for fault in faults:
        print(fault, file=sys.stderr)
    return ExitCode.FINDINGS if faults else ExitCode.CLEAN


def explain_object(document: Document) -> list[str]:
    """An object of a file with all effective values, as YAML lines with comments that say where a value comes from.

    Raises ValueError with one line per fault of the object.
    """
    obj = document.content
    api_version, kind_name = (obj.get("apiVersion"), obj.get("kind")) if isinstance(obj, dict) else (None, None)
    if not isinstance(api_version, str) or not isinstance(kind_name, str):
        raise ValueError("no Kubernetes object: apiVersion and kind are missing")
    if api_version.partition("/")[0] != GROUP:
        return [f"# {kind_name} of {api_version} is none of npufleet's kinds"]
    kind = BY_NAME.get(kind_name)
    if kind is None or api_version != API_VERSION:
        hint = did_you_mean(f"{kind_name}", BY_NAME) if kind is None else f"; the version is {API_VERSION}"
        raise ValueError(f"npufleet has no kind {kind_name} of {api_version}{hint}")
    try:
        model = kind.model.strict(obj)
    except ValidationError as error:
        raise ValueError("\n".join(_fault(kind, path, message) for path, message in faults_of(error))) from None
    metadata = {key: obj["metadata"][key] for key in ("name", "namespace") if key in obj["metadata"]}
    head = {"apiVersion": api_version, "kind": kind_name, "metadata": metadata}
    return [*_lines(_given(head), 0), "spec:", *_lines(effective_spec(model), 1)]


def _fault(kind: Kind, path: str, message: str) -> str:
    hint = ""
    if message.startswith("Extra inputs"):
        message, hint = "unknown field", did_you_mean(path.rpartition(".")[2], _siblings(kind, path))
    return f"{path or kind.name}: {message}{hint}"


def _siblings(kind: Kind, path: str) -> list[str]:
    holder = re.sub(r"\[\d+\]", "[]", path).rpartition(".")[0]
    return [doc.name for doc in field_docs(kind) if doc.path.rpartition(".")[0] == holder]


def _given(value: Any) -> Effective:
    if isinstance(value, dict):
        return Effective({key: _given(item) for key, item in value.items()}, is_given=True)
    return Effective(value, is_given=True)


def _lines(value: Effective, depth: int) -> Iterator[str]:
    """The fields of a map as YAML; last, as comments, the absent ones that no value stands for."""
    pad = "  " * depth
    absent: dict[str, list[str]] = {}
    for name, item in value.content.items():
        if item.meaning is not None:
            absent.setdefault(item.meaning, []).append(name)
        else:
            yield from _field(_text(name), item, depth)
    for meaning, names in absent.items():
        yield f"{pad}# absent, so {meaning}: {', '.join(names)}"


def _field(name: str, item: Effective, depth: int) -> Iterator[str]:
    pad = "  " * depth
    mark = "" if item.is_given else "  # effective"
    if isinstance(item.content, dict):
        below = list(_lines(item, depth + 1))
        is_empty = all(line.lstrip().startswith("#") for line in below)
        yield f"{pad}{name}:{' {}' if is_empty else ''}{mark}"
        yield from below
    elif isinstance(item.content, list) and any(isinstance(entry.content, dict) for entry in item.content):
        yield f"{pad}{name}:{mark}"
        for entry in item.content:
            # Items of the API's lists have required fields, so that the first line is never a comment.
            first, *rest = _lines(entry, depth + 1)
            yield f"{pad}- {first.lstrip()}"
            yield from rest
    else:
        yield f"{pad}{name}: {_flow(item)}{mark}"


def _flow(value: Effective) -> str:
    if isinstance(value.content, list):
        return f"[{', '.join(_flow(item) for item in value.content)}]"
    return _text(value.content) if isinstance(value.content, str) else json.dumps(value.content)


def _text(text: str) -> str:
    """A string, quoted where YAML would take it for something else."""
    return text if _PLAIN.fullmatch(text) and isinstance(scalar(text), str) else json.dumps(text, ensure_ascii=False)
