"""--fix: only what keeps the meaning, shown as a JSON patch first, with comments and layout as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.lint import run
from cli.lint.fixes import FixedFile, fixes
from cli.lint.linter import lint
from cli.lint.sources import Source, read_text
from crds.yaml_documents import read_all
from tests.builders.linting import CONFIG_MAP, NAME, POLICY, options, run_lint

IDS = POLICY.replace("products: [RBLN-CA25]", 'vendors: ["1eff"]\n      devices: [IDS] # ids')
CRD_THING = "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: x}\nspec: {a: VALUE}\n"


def fixed(text: str) -> FixedFile | None:
    read, findings = read_text(NAME, text.encode())
    assert read is not None
    outcome = lint([Source(NAME, read, Path(NAME))], options(allowed=("example.org",)))
    found = fixes(outcome, [*findings, *outcome.findings])
    return found[0] if found else None


def fixed_text(text: str) -> str:
    found = fixed(text)
    return text if found is None else found.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (IDS.replace("IDS", "1250"), IDS.replace("IDS", '"1250"')),
        (IDS.replace("IDS", "0110,26e9"), IDS.replace("IDS", '"0110","26e9"')),
        (POLICY.replace("name: atoms", "name: atoms\n  labels: {v: 1.10}"), '"1.10"'),
        (f"{CONFIG_MAP}data:\n  a: yes # why\n  b: 010\n", f'{CONFIG_MAP}data:\n  a: "yes" # why\n  b: "010"\n'),
        (CRD_THING.replace("VALUE", "12:30"), CRD_THING.replace("VALUE", '"12:30"')),
        (CRD_THING.replace("VALUE", "yes"), CRD_THING.replace("VALUE", "true")),
        (CRD_THING.replace("VALUE", "Off"), CRD_THING.replace("VALUE", "false")),
        (f"\ufeff{POLICY}", POLICY),
        (POLICY.replace("    mode:", "    limit:\n    mode:"), POLICY),
        (POLICY.replace("    mode:", "    limit: ~\n    mode:"), POLICY),
        (POLICY.replace("    mode:", "    mode: Passthrough\n    mode:"), POLICY),
        (POLICY.replace("\n", "\r\n").replace("[RBLN", "&x [RBLN"), "&x"),
    ],
)
def test_what_keeps_the_meaning_is_mended(before: str, after: str) -> None:
    found = fixed_text(before)
    assert found == after or after in found


@pytest.mark.parametrize(
    "text",
    [
        POLICY.replace("Passthrough", "passthrough"),  # may be meant otherwise
        IDS.replace("IDS", "0x1250"),  # would be refused with quotes as well
        IDS.replace("IDS", "1.5"),
        CRD_THING.replace("VALUE", "010"),  # 8 and "010" are both possible
        CRD_THING.replace("VALUE", "26e9"),
        f"{CONFIG_MAP}data: {{yes: a}}\n",  # the key is "true" to kubectl
        f"{CONFIG_MAP}data: {{a: &x 5, b: *x}}\n",  # in two places
        f"{CONFIG_MAP}data: {{a: !!int 5}}\n",  # said on purpose
        POLICY.replace("    mode:", "    limit: # none\n    mode:"),  # the comment would go
        POLICY.replace("    mode: Passthrough", "    mode: Passthrough\n    mode: Container"),
        f"{CONFIG_MAP}data:\n  a: null\n",  # of Kubernetes' own
        "a: [\n",
        POLICY,
    ],
)
def test_what_might_change_the_meaning_is_left_alone(text: str) -> None:
    assert fixed(text) is None


def test_the_patch_says_what_becomes_of_the_objects() -> None:
    text = f"{IDS.replace('IDS', '1250')}---\nkind: List\napiVersion: v1\nitems:\n- {CRD_THING[:-1]}\n"
    text = text.replace("\nkind: Thing", "\n  kind: Thing").replace("\nmetadata: {name: x}", "\n  metadata: {name: x}")
    text = text.replace("\nspec: {a", "\n  spec: {a").replace("VALUE", "yes")
    found = fixed(text)
    assert found is not None
    assert found.patches == {1: [{"op": "replace", "path": "/spec/devices/0/match/devices/0", "value": "1250"}]}
    assert [edit.line for edit in found.edits] == [11, 20]
    after = [document.content for document in read_all(found.text).documents]
    assert after[1]["items"][0]["spec"] == {"a": True}


def test_a_patch_is_shown_and_nothing_written_without_a_yes(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(IDS.replace("IDS", "1250"))
    ended = run_lint("--fix", path)
    assert ended.code == 1
    assert ended.out.splitlines()[:3] == [
        f'{path}:11: write "1250"',
        f'{path}: document 1: [{{"op": "replace", "path": "/spec/devices/0/match/devices/0", "value": "1250"}}]',
        "nothing was written: --yes writes without asking",
    ]
    assert path.read_text() == IDS.replace("IDS", "1250")


def test_with_a_yes_the_file_is_written_and_linted_again(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(IDS.replace("IDS", "1250"))
    path.chmod(0o640)
    ended = run_lint("--fix", "--yes", "--diff", path)
    assert ended.code == 0
    assert '-      devices: [1250] # ids\n+      devices: ["1250"] # ids\n' in ended.out
    assert path.read_text() == IDS.replace("IDS", '"1250"')
    assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy.yaml"]
    again = run_lint("--fix", "--yes", path)
    assert again.out == "nothing can be mended without altering what it means\n1 object in 1 file: no faults\n"


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path = tmp_path / "real" / "policy.yaml"
    path.write_text(IDS.replace("IDS", "1250"))
    (tmp_path / "link.yaml").symlink_to(path)
    assert run_lint("--fix", "--yes", tmp_path / "link.yaml").code == 0
    assert (tmp_path / "link.yaml").is_symlink()
    assert path.read_text() == IDS.replace("IDS", '"1250"')


def test_a_file_that_changed_meanwhile_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(IDS.replace("IDS", "1250"))

    def agreed(_: int) -> bool:
        path.write_text(POLICY)
        return True

    monkeypatch.setattr(run, "_agreed", agreed)
    ended = run_lint("--fix", path)
    assert ended.code == 3
    assert "changed while it was looked at" in ended.err
    assert path.read_text() == POLICY


def test_a_file_that_may_not_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(IDS.replace("IDS", "1250"))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run, "write_durably", refuse)
    ended = run_lint("--fix", "--yes", path)
    assert ended.code == 3
    assert f"{path} cannot be written: Permission denied" in ended.err


@pytest.mark.parametrize(("answer", "written"), [("y", True), ("Yes", True), ("", False), ("n", False)])
def test_a_person_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, written: bool) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(IDS.replace("IDS", "1250"))

    class Terminal:
        def isatty(self) -> bool:
            return True

        def write(self, _: str) -> int:
            return 0

        def flush(self) -> None:
            return None

    monkeypatch.setattr("cli.lint.run.sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda: answer)
    monkeypatch.setattr("cli.lint.run.sys.stderr", Terminal())
    assert run._agreed(1) is written


def test_what_programs_read_stays_free_of_patches(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(IDS.replace("IDS", "1250"))
    ended = run_lint("--fix", "--format", "json", path)
    assert json.loads(ended.out)["summary"]["errors"] == 1
    assert '"op": "replace"' in ended.err
