"""Does what `npufleet lint` was asked: takes the files, judges them, offers fixes, and tells."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from cli.errors import CommandError, ExitCode
from cli.lint import baseline
from cli.lint.base import Base, repository_of
from cli.lint.command import STDIN
from cli.lint.findings import Finding, in_order, of_file
from cli.lint.fixes import FixedFile, fixes
from cli.lint.formats import FORMATS
from cli.lint.kustomizations import KUSTOMIZATION_NAMES
from cli.lint.kustomize import build
from cli.lint.linter import Options, Outcome, lint
from cli.lint.report import Report
from cli.lint.sources import LARGEST_BYTES, Collected, Source, collect, read_text
from cli.progress import Progress
from node_host.durable_file import write_durably
from webhooks.rules.files import NOTHING

# What a forge reads: it knows files by their place in the repository.
_FROM_THE_TOP = frozenset({"sarif", "github"})


def run(arguments: argparse.Namespace) -> int:
    """The exit code; arguments are those that `cli.lint.command` takes and finds without contradictions."""
    taken = _take(arguments)
    before = _base(arguments) if arguments.base is not None else []
    crds = collect(arguments.crds).sources if arguments.crds else []
    found = _lint(arguments, taken, before, crds)
    if arguments.fix and _fix(arguments, found, [*taken.findings, *found.findings]):
        taken = _take(arguments)
        found = _lint(arguments, taken, before, crds)
    findings = in_order([*taken.findings, *found.findings])
    if not findings and not found.objects:
        findings = [_nothing(arguments)]
    if arguments.write_baseline:
        count = baseline.write(arguments.baseline, findings)
        print(f"{arguments.baseline}: {count} known fault{'' if count == 1 else 's'}", file=sys.stderr)
        return ExitCode.CLEAN
    report = _report(arguments, taken, found, findings)
    _print(FORMATS[arguments.format](report), sys.stdout)
    return report.exit_code


def _nothing(arguments: argparse.Namespace) -> Finding:
    if arguments.paths == [STDIN]:
        return of_file(NOTHING, "stdin", "there is no object here", "look at what writes to it")
    where = arguments.kustomize or ", ".join(map(str, arguments.paths))
    return of_file(NOTHING, where, "there is no object here", "look at the path: *.yaml, *.yml and *.json are read")


def _from_the_top(findings: list[Finding]) -> list[Finding]:
    """Files as their places in the repository around the present directory: so do pull requests find them."""
    top = repository_of(Path.cwd())
    if top is None:
        return findings
    return [replace(one, spot=one.spot._replace(file=_place(one.spot.file, top))) for one in findings]


def _place(file: str, top: Path) -> str:
    path = Path(file).resolve()
    return path.relative_to(top).as_posix() if path.exists() and path.is_relative_to(top) else file


def _take(arguments: argparse.Namespace) -> Collected:
    if arguments.kustomize is not None:
        source, findings = build(Path(arguments.kustomize), _kustomization(Path(arguments.kustomize)))
        return Collected([source] if source is not None else [], findings)
    if arguments.paths == [STDIN]:
        text, findings = read_text("stdin", sys.stdin.buffer.read(LARGEST_BYTES + 1))
        return Collected([Source("stdin", text)] if text is not None else [], findings)
    with _Ticker("reading") as ticker:
        return collect(arguments.paths, ticker.tick)


def _base(arguments: argparse.Namespace) -> list[Source]:
    if arguments.kustomize is not None:
        directory = Path(arguments.kustomize)
        with Base.of(arguments.base, directory).exported(directory) as before:
            built, findings = build(before, _kustomization(directory)) if before is not None else (None, [])
        for finding in findings:
            print(f"note: {arguments.base} is left out: {finding.violation.text}", file=sys.stderr)
        return [built] if built is not None else []
    paths = [Path(path) for path in arguments.paths]
    return Base.of(arguments.base, paths[0]).sources(paths)


def _kustomization(directory: Path) -> str:
    names = [name for name in sorted(KUSTOMIZATION_NAMES) if (directory / name).is_file()]
    return str(directory / (names[0] if names else "kustomization.yaml"))


def _lint(arguments: argparse.Namespace, taken: Collected, before: list[Source], crds: list[Source]) -> Outcome:
    options = Options(
        now=datetime.now(UTC),
        is_whole=bool(taken.directories) or arguments.kustomize is not None or arguments.paths == [STDIN],
        skip_built_in=arguments.skip_built_in,
        allowed_groups=frozenset(arguments.allow_group),
        kubernetes_version=arguments.k8s_version,
    )
    with _Ticker("linting") as ticker:
        return lint(taken.sources, options, base=before, crds=crds, tick=ticker.tick)


def _report(arguments: argparse.Namespace, taken: Collected, found: Outcome, findings: list[Finding]) -> Report:
    known = gone = 0
    if arguments.baseline is not None:
        findings, known, gone = baseline.without_known(findings, baseline.read(arguments.baseline))
    if arguments.format in _FROM_THE_TOP:
        findings = _from_the_top(findings)
    stale = f"{gone} of the faults in {arguments.baseline} are gone: write it anew with --write-baseline"
    return Report(
        findings=tuple(findings),
        files=len(taken.sources),
        objects=len(found.objects),
        known=known,
        is_strict=arguments.strict,
        notes=tuple(found.notes),
        stale=(stale,) if gone else (),
    )


def _fix(arguments: argparse.Namespace, found: Outcome, findings: list[Finding]) -> bool:
    """Show what can be mended, and do it once somebody says yes; whether files were written."""
    fixed = fixes(found, findings)
    # Other formats are read by programs.
    out = sys.stdout if arguments.format == "text" else sys.stderr
    if not fixed:
        print("nothing can be mended without altering what it means", file=out)
        return False
    for file in fixed:
        _show(file, out, diff=arguments.diff)
    if not arguments.yes and not _agreed(len(fixed)):
        print("nothing was written: --yes writes without asking", file=out)
        return False
    for file in fixed:
        _write(file)
    return True


def _show(file: FixedFile, out: TextIO, *, diff: bool) -> None:
    lines = [f"{file.source.name}:{edit.line}: {edit.what}" for edit in file.edits]
    lines += [f"{file.source.name}: document {number}: {json.dumps(patch)}" for number, patch in file.patches.items()]
    if not file.patches:
        lines.append(f"{file.source.name}: no object changes: []")
    _print("\n".join(lines) + "\n" + (file.diff if diff else ""), out)


def _agreed(count: int) -> bool:
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    print(f"write {count} file{'' if count == 1 else 's'}? [y/N] ", end="", file=sys.stderr, flush=True)
    with suppress(EOFError):
        return input().strip().lower() in {"y", "yes"}
    return False


def _write(file: FixedFile) -> None:
    path = file.source.path
    if path is None:
        raise TypeError("only files are mended")
    try:
        path = path.resolve()
        if path.read_bytes() != file.source.text.encode():
            raise CommandError(f"{path} changed while it was looked at: nothing was written to it, run lint again")
        write_durably(path, file.text.encode(), mode=path.stat().st_mode & 0o777)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error


def _print(text: str, out: TextIO) -> None:
    """Names of files may be bytes that no encoding has: they shall not end the command."""
    encoding = out.encoding or "utf-8"
    out.write(text.encode(encoding, "backslashreplace").decode(encoding))


class _Ticker:
    """One moving line on a terminal, and silence anywhere else: what comes out is read by programs."""

    def __init__(self, what: str) -> None:
        self._step = Progress().waiting(what) if sys.stderr.isatty() else None

    def __enter__(self) -> _Ticker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._step is not None:
            self._step.clear()

    def tick(self, detail: str) -> None:
        if self._step is not None:
            self._step.tick(detail)
