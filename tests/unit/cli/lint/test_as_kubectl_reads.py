"""The real kubectl, without a server, reads the same documents out of a text, and refuses what the linter refuses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.kubectl import find_kubectl
from crds.yaml_documents import read_all
from tests.builders.linting import rules_in

HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
OTHER = HEAD.replace("name: a", "name: b")
READ = {
    "two documents": f"{HEAD}---\n{OTHER}",
    "a comment behind the separator": f"{HEAD}--- # two\n{OTHER}",
    "blanks behind the separator": f"{HEAD}---   \n{OTHER}",
    "line ends of Windows": f"{HEAD}---\n{OTHER}".replace("\n", "\r\n"),
    "empty documents": f"---\n---\n{HEAD}---\n---\n# words\n---\n{OTHER}---\n",
    "a byte order mark": f"\ufeff{HEAD}",
    "a byte order mark in the second document": f"{HEAD}---\n\ufeff{OTHER}",
    "words and numbers": f"{HEAD}data: {{a: yes, b: 0110, c: 0000:27:00.0, d: 26e9, e: 1e999, f: ~, g: 089, h: '1'}}\n",
    "anchors": f"{HEAD}x: &x {{a: 1}}\ny: *x\nz: {{<<: *x, b: 2}}\n",
    "keys that are no strings": f"{HEAD}data: {{1: a, on: b, 1.5: c}}\n",
    "a block of text with hyphens": f"{HEAD}data:\n  a: |\n    ---\n    b\n",
    "JSON": '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "x": "\\ud83d\\ude00", "y": 1e3}',
}
REFUSED = {
    "text behind the separator": f"{HEAD}--- {{a: b}}\n",
    "a letter behind the separator": f"{HEAD}---x\n{OTHER}",
    "a directive": f"%YAML 1.1\n---\n{HEAD}",
    "a tab": f"{HEAD}data:\n\ta: b\n",
    "infinity": f"{HEAD}data: {{x: .inf}}\n",
    "an alias of nothing": f"{HEAD}data: *x\n",
    "an anchor of another document": f"{HEAD}data: &x {{}}\n---\n{OTHER}data: *x\n",
    "a list that is not closed": f"{HEAD}data: [\n",
    "a single word": f"{HEAD}---\nword\n",
}


def kubectl(text: str, folder: Path) -> tuple[int, list[Any]]:
    """The exit code, and the objects that kubectl read out of the text."""
    path = folder / "file.yaml"
    path.write_bytes(text.encode())
    command = [str(find_kubectl()), "annotate", "--local", "-f", str(path), "x=y", "-o", "json", "--dry-run=client"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": os.devnull}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    decoder, found, rest = json.JSONDecoder(), [], done.stdout.lstrip()
    while rest:
        value, end = decoder.raw_decode(rest)
        found.append(_without_mark(value))
        rest = rest[end:].lstrip()
    return done.returncode, found


def _without_mark(value: Any) -> Any:
    del value["metadata"]["annotations"]
    return value


@pytest.mark.parametrize("name", READ)
def test_what_kubectl_reads_is_read_alike(name: str, tmp_path: Path) -> None:
    code, objects = kubectl(READ[name], tmp_path)
    reading = read_all(READ[name])
    assert code == 0
    assert reading.faults == []
    assert [document.content for document in reading.documents] == objects


@pytest.mark.parametrize("name", REFUSED)
def test_what_kubectl_refuses_is_an_error(name: str, tmp_path: Path) -> None:
    code, _ = kubectl(REFUSED[name], tmp_path)
    assert code != 0
    assert any(rule.startswith("NPF-YML") for rule in rules_in(REFUSED[name]))


def test_a_repeated_key_is_an_error_where_kubectl_takes_the_last_one(tmp_path: Path) -> None:
    text = f"{HEAD}data: {{x: '1'}}\ndata: {{x: '2', x: '3'}}\n"
    code, objects = kubectl(text, tmp_path)
    assert (code, objects[0]["data"]) == (0, {"x": "3"})
    assert read_all(text).documents[0].content == objects[0]
    assert rules_in(text) == ["NPF-YML-003", "NPF-YML-003"]


def test_what_kubectl_drops_without_a_word_is_an_error(tmp_path: Path) -> None:
    text = f"{HEAD}...\n{OTHER}"
    code, objects = kubectl(text, tmp_path)
    assert (code, len(objects)) == (0, 1)
    assert rules_in(text) == ["NPF-YML-004"]
