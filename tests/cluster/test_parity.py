"""A real API server with the webhook, and the linter, on the same objects: the same verdict, and no fault that only one
of them names."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.cluster.access.api_access import ApiAccess
from cli.cluster.errors import ApiCallError
from cli.cluster.run.control_plane import ControlPlane
from cli.lint.findings import Finding
from cli.lint.report import steps
from crds.generator.schema import structural_schema
from crds.models.base import API_VERSION
from crds.models.kinds import BY_NAME
from tests.builders.examples import Digits, at_least, times
from tests.builders.linting import found_in, options, run_lint
from tests.builders.made_objects import Maker, Pick
from tests.builders.mutations import mutated, seeds, without
from tests.builders.samples import FOLDER, INVALID, VALID, InvalidSample
from tests.builders.schema_judge import Judge
from tests.builders.webhook_installation import installed_webhook
from tests.builders.webhook_process import Kubectl
from webhooks.rules import Layer

FLOOR = 2000
CALLERS = 8
MOST_TOLD = 500
SEED_VARIABLE = "NPUFLEET_FUZZ_SEED"
WRITE_VARIABLE = "NPUFLEET_WRITE_GOLDEN"
GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[2]
WHOLE = {name: structural_schema(kind.model) for name, kind in BY_NAME.items()}
SCHEMAS = {name: schema["properties"]["spec"] for name, schema in WHOLE.items()}
SEEDS = {name: [one for one in seeds() if one["kind"] == name] for name in BY_NAME}
KINDS = (*(("NPUNodePolicy",) * 4), "VGPUProfileMap", "VGPUProfileMap", "VNPUQuota", "VNPUQuota", "NPUNodeState")
Object = dict[str, Any]


@pytest.fixture(scope="module")
def webhook(
    installed: None, control_plane: ControlPlane, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    kubectl("apply", "--server-side", "-f", str(FOLDER / "namespaces.yaml"))
    with installed_webhook(control_plane, kubectl, tmp_path_factory.mktemp("webhook")):
        yield


@dataclass(frozen=True)
class Verdict:
    """What the API server says of an object: whether it takes it, and the fields that it names."""

    taken: bool
    fields: tuple[str, ...]
    message: str


def made(pick: Pick) -> Object:
    """By the schema, or a real object with accidents. What kubectl itself looks at first is as it should be."""
    kind = pick(KINDS)
    if pick((False, True, True)):
        obj = mutated(pick, pick(SEEDS[kind]))
    else:
        spec = Maker(pick, sloppy=pick((False, True))).value(SCHEMAS[kind])
        obj = mutated(pick, {"spec": spec}) if pick((False, False, True)) else {"spec": spec}
    given = obj.get("metadata")
    metadata = dict(given) if isinstance(given, dict) else {}
    metadata["name"] = f"parity-{pick(range(10**6))}"
    if BY_NAME[kind].namespaced:
        metadata["namespace"] = "default"
    return obj | {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata}


def asked(api: ApiAccess, obj: Object) -> Verdict:
    """A dry run of its creation with strict validation, as kubectl asks for it."""
    path = f"{place_of(obj)}?dryRun=All&fieldValidation=Strict&fieldManager=parity"
    try:
        api.call("POST", path, obj, timeout=60)
    except ApiCallError as error:
        answer = error.answer if isinstance(error.answer, dict) else {}
        message = str(answer.get("message", error))
        assert error.status in (400, 403, 422), message
        causes = (answer.get("details") or {}).get("causes") or []
        found = [str(cause.get("field", "")) for cause in causes if cause.get("field") not in (None, "", "<nil>")]
        if not causes:
            found += re.findall(r'unknown field "([^"]+)"', message)
        return Verdict(False, tuple(dict.fromkeys(found)), message)
    return Verdict(True, (), "")


def errors_of(obj: Object) -> list[Finding]:
    """What the linter refuses it for; what it says of a whole set of files apart."""
    found = found_in(json.dumps(obj), asked=replace(options(), now=datetime.now(UTC)))
    return [one for one in found if one.is_error and one.layer is not Layer.LINT]


def is_named(field: str, named: set[str]) -> bool:
    """Whether the linter names the field, or something in it: of a map's keys the server names the map alone."""
    return any(one == field or one.startswith((f"{field}.", f"{field}[")) for one in named)


def plain(field: str) -> str:
    """The server writes a key in a map as .key here and as [key] there."""
    return re.sub(r"\[([^\]\d][^\]]*)\]", r".\1", field)


def seed() -> int:
    """Told, so that a run can be repeated."""
    found = int(os.environ.get(SEED_VARIABLE, "20261130"))
    print(f"{SEED_VARIABLE}={found}")
    return found


def test_generated_and_damaged_objects_have_the_same_verdict(webhook: None, control_plane: ControlPlane) -> None:
    dice = random.Random(seed())
    objects = [made(Digits(dice.getrandbits(1280)).pick) for _ in range(times(FLOOR + 100))]
    api = control_plane.api()
    started = time.monotonic()
    with ThreadPoolExecutor(CALLERS) as pool:
        verdicts = list(pool.map(lambda obj: asked(api, obj), objects))
    seconds = time.monotonic() - started
    wrong: list[str] = []
    counts: Counter[str] = Counter()
    with at_least(FLOOR, "the API server and the linter have the same verdict") as examples:
        for obj, verdict in zip(objects, verdicts, strict=True):
            examples.one()
            errors = errors_of(obj)
            layers = {one.layer for one in errors}
            counts["taken" if verdict.taken else "refused"] += 1
            counts.update(layer.name for layer in layers if layer is not None)
            named = {plain(one.violation.field) for one in errors}
            # Of hundreds of faults the linter tells so many, and how many more there are.
            is_cut = len(errors) >= MOST_TOLD
            missed = [] if is_cut else [field for field in verdict.fields if not is_named(plain(field), named)]
            if verdict.taken != (not errors) or missed:
                told = "\n  ".join(one.violation.line for one in errors)
                wrong.append(f"server: {verdict}\nlinter:\n  {told}\nnot named: {missed}\n{json.dumps(obj)}")
    print(f"{dict(sorted(counts.items()))}; the API server took {seconds:.1f} s with {CALLERS} callers")
    assert not wrong, f"{len(wrong)} disagreements, of which the first:\n" + "\n\n".join(wrong[:5])
    assert min(counts["taken"], counts["refused"]) > FLOOR // 10
    assert all(counts[layer.name] > FLOOR // 100 for layer in (Layer.FIELDS, Layer.SCHEMA, Layer.CEL, Layer.WEBHOOK))


def test_generated_statuses_have_the_verdict_of_models_and_schemas(
    webhook: None, control_plane: ControlPlane, kubectl: Kubectl
) -> None:
    """The linter does not look at a status, which a server drops; daemons and controllers write it by the models."""
    dice = random.Random(seed())
    api = control_plane.api()
    asked_of: list[tuple[str, Object]] = []
    for kind in BY_NAME.values():
        sample = next(one for one in VALID if one["kind"] == kind.name)
        kubectl("apply", "--server-side", "-f", "-", input=json.dumps(without(sample, ["status"])))
        path = f"{place_of(sample)}/{sample['metadata']['name']}"
        kept = api.call("GET", path)
        for _ in range(times(150)):
            pick = Digits(dice.getrandbits(1280)).pick
            status = Maker(pick, sloppy=pick((False, True))).value(WHOLE[kind.name]["properties"]["status"])
            found = mutated(pick, {"spec": status})["spec"] if pick((True, False)) else status
            asked_of.append((f"{path}/status?dryRun=All&fieldValidation=Strict", kept | {"status": found}))

    def refused(call: tuple[str, Object]) -> str:
        try:
            api.call("PUT", *call, timeout=60)
        except ApiCallError as error:
            assert error.status in (400, 422), error
            return str(error)
        return ""

    counts: Counter[bool] = Counter()
    with ThreadPoolExecutor(CALLERS) as pool, at_least(600, "statuses have the same verdict") as examples:
        for (_, obj), words in zip(asked_of, pool.map(refused, asked_of), strict=True):
            examples.one()
            faults = Judge(WHOLE[obj["kind"]]).faults(without(obj, ["metadata", "apiVersion", "kind"]))
            status = json.dumps(obj["status"])
            assert bool(words) == bool(faults), f"server: {words}\nschema: {faults}\n{status}"
            counts[not words] += 1
    print(f"{counts[True]} taken, {counts[False]} refused")
    assert min(counts.values()) > 60
    for kind in BY_NAME.values():
        remove(kubectl, next(one for one in VALID if one["kind"] == kind.name))


def place_of(obj: Object) -> str:
    kind = BY_NAME[obj["kind"]]
    where = f"namespaces/{obj['metadata']['namespace']}/" if kind.namespaced else ""
    return f"/apis/{API_VERSION}/{where}{kind.plural}"


def remove(kubectl: Kubectl, *objects: Object) -> None:
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    kubectl("delete", "-f", "-", "--ignore-not-found", input=items)


def test_case_11_applied_samples_are_read_back_as_they_were_written(
    webhook: None, control_plane: ControlPlane, kubectl: Kubectl
) -> None:
    samples = [without(sample, ["status"]) for sample in VALID]
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": samples})
    try:
        kubectl("apply", "-f", "-", input=items)
        for sample in samples:
            found = control_plane.api().call("GET", f"{place_of(sample)}/{sample['metadata']['name']}")
            assert found["spec"] == sample["spec"]
            assert found["metadata"].get("labels") == sample["metadata"].get("labels")
        compared = kubectl("diff", "-f", "-", input=items, check=False)
        assert (compared.returncode, compared.stdout) == (0, "")
        again = kubectl("apply", "-f", "-", input=items)
        assert again.stdout.count(" unchanged\n") == len(samples)
    finally:
        remove(kubectl, *samples)


FAULTY: Object = {
    "apiVersion": API_VERSION,
    "kind": "NPUNodePolicy",
    "metadata": {"name": "faulty"},
    "spec": {
        "prioritty": 5,
        "nodeSelector": {},
        "onRelease": "Keep",
        "devices": [
            {"name": "all", "match": {"products": ["RBLN-CA2"]}, "mode": "Passthrough", "limit": 0},
            {"name": "vgpu", "match": {"products": ["L40S"]}, "mode": "VGPU"},
        ],
    },
}
MENDED: dict[Layer, dict[str, Any]] = {
    Layer.FIELDS: {"spec.prioritty": None},
    Layer.SCHEMA: {"spec.onRelease": "Restore", "spec.devices.0.limit": 1},
    Layer.CEL: {"spec.devices.1.vgpu": {"profileMapRef": {"name": "map"}}},
    Layer.WEBHOOK: {"spec.devices.0.match.products": ["RBLN-CA25"]},
}


def mend(obj: Object, changes: dict[str, Any]) -> None:
    for path, value in changes.items():
        holder: Any = obj
        *way, last = path.split(".")
        for step in way:
            holder = holder[int(step)] if isinstance(holder, list) else holder[step]
        if value is None:
            del holder[last]
        else:
            holder[last] = value


def test_server_reveals_faults_layer_by_layer_in_the_order_that_lint_tells_at_once(
    webhook: None, control_plane: ControlPlane
) -> None:
    obj: Object = json.loads(json.dumps(FAULTY))
    told = steps(found_in(json.dumps(obj)))
    assert [step.layer for step in told] == list(MENDED)
    for step in told:
        verdict = asked(control_plane.api(), obj)
        assert not verdict.taken
        expected = {one.violation.field for one in step.findings}
        assert {field for field in verdict.fields if is_named(field, expected)} == set(verdict.fields)
        assert all(is_named(field, set(verdict.fields)) for field in expected), verdict
        mend(obj, MENDED[step.layer])
    assert asked(control_plane.api(), obj).taken


def shown(sample: InvalidSample, kubectl: Kubectl) -> tuple[str, str]:
    """What `kubectl apply` and `npufleet lint` say of the file, without what differs from run to run."""
    done = kubectl("apply", "-f", str(sample.path), check=False)
    assert done.returncode == 1, f"{sample.name} is taken: {done.stdout}"
    ended = run_lint(sample.path)
    assert ended.code == 1, ended.out
    return lasting(done.stderr), lasting(ended.out)


def lasting(text: str) -> str:
    text = text.replace(f"{ROOT}/", "")
    return re.sub(r'(it is |the latest is |write e\.g\. ")[0-9T:-]+Z', r"\1NOW", text)


def ids(text: str) -> set[str]:
    return set(re.findall(r"\[(NPF-[A-Z]+-[0-9]{3})\]", text))


@pytest.mark.parametrize("kind", sorted({sample.object["kind"] for sample in INVALID}))
def test_invalid_samples_are_refused_in_words_to_act_on(kind: str, webhook: None, kubectl: Kubectl) -> None:
    """The words are in golden files, for people to read: NPUFLEET_WRITE_GOLDEN=1 writes them anew."""
    parts = []
    for sample in INVALID:
        if sample.object["kind"] != kind:
            continue
        refused, linted = shown(sample, kubectl)
        first = steps(found_in(sample.path.read_text(encoding="utf-8")))[0]
        if first.layer in (Layer.CEL, Layer.WEBHOOK):
            errors = {one.rule for one in first.findings}
            assert errors <= ids(refused), sample.name
            warned = {one.rule for one in found_in(sample.path.read_text(encoding="utf-8")) if not one.is_error}
            assert ids(refused) <= errors | warned, sample.name
        name = sample.path.relative_to(ROOT)
        parts.append(f"$ kubectl apply -f {name}\n{refused}\n$ npufleet lint {name}\n{linted}")
    text = "\n\n".join(parts)
    golden = GOLDEN / f"{BY_NAME[kind].singular}.txt"
    if os.environ.get(WRITE_VARIABLE):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), f"if these words are better, run with {WRITE_VARIABLE}=1"
