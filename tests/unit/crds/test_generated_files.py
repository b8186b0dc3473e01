"""The manifests and the reference in the repository are those that the models give."""

import shutil
from enum import StrEnum
from pathlib import Path

import pytest
import yaml

from controllers.node_policy.plan.view import BlockerReason, NodeConditionType, NodeReason
from crds.generator.__main__ import generated, main, stale
from crds.generator.manifests import manifests
from crds.models.bindings import BindingReason as Reason
from crds.models.condition_reference import CONDITIONS, REASONS
from crds.models.kinds import KINDS
from crds.models.node_policy import PolicyConditionType, PolicyReason
from crds.models.node_state import DeviceState
from crds.models.profile_map import MapConditionType, MapReason
from crds.models.profiling import ProfileReason, ProfilesConditionReason
from crds.models.publication import PublicationConditionReason, PublicationConditionType, PublicationReason
from crds.yaml_documents import read_documents
from profile_writer.report import ConditionType as WriterConditionType
from profile_writer.report import RecordReason
from vfio_binder.report import ConditionReason, ConditionType

ROOT = Path(__file__).parents[3]


FOLDERS = (
    "crds/manifests",
    "docs/reference/api",
    "kustomize/base/device-classes",
    "kustomize/samples/vgpu-device-classes",
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def test_the_repository_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_a_changed_a_missing_and_a_left_over_file_are_named_and_nothing_is_written(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = copy / "crds/manifests/vnpuquotas.yaml"
    changed.write_text(changed.read_text() + "\n")
    (copy / "docs/reference/api/npunodepolicy.md").unlink()
    (copy / "crds/manifests/old.yaml").write_text("")
    assert main(["--check", "--root", str(copy)]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[:3] == [
        "crds/manifests/old.yaml: not generated any more",
        "crds/manifests/vnpuquotas.yaml: stale",
        "docs/reference/api/npunodepolicy.md: missing",
    ]
    assert "python -m crds.generator" in told[3]
    assert not (copy / "docs/reference/api/npunodepolicy.md").exists()


def test_generating_mends_every_fault_and_leaves_other_files_alone(copy: Path) -> None:
    (copy / "crds/manifests/npunodestates.yaml").unlink()
    (copy / "crds/manifests/old.yaml").write_text("")
    current = copy / "crds/manifests/vnpuquotas.yaml"
    before = current.stat().st_mtime_ns
    assert main(["--root", str(copy)]) == 0
    assert stale(generated(copy)) == []
    assert current.stat().st_mtime_ns == before


def test_manifests_read_the_same_to_kubectl_as_to_a_yaml_1_1_reader() -> None:
    for name, text in manifests().items():
        assert read_documents(text, name)[0].content == yaml.safe_load(text)


def test_the_kustomization_lists_every_manifest() -> None:
    files = manifests()
    listed = yaml.safe_load(files["kustomization.yaml"])["resources"]
    assert sorted(listed) == sorted(set(files) - {"kustomization.yaml"})
    assert len(listed) == len(KINDS)


def words(kind: str, *holders: str) -> tuple[set[str], set[str]]:
    """The documented condition types and reasons below these fields."""
    documented = [condition for condition in CONDITIONS[kind] if condition.holder in holders]
    return {doc.type for doc in documented}, {reason.reason for doc in documented for reason in doc.reasons}


def constants(*enums: type[StrEnum]) -> set[str]:
    return {str(word) for enum in enums for word in enum}


def test_every_condition_and_reason_is_in_the_reference() -> None:
    assert words("NPUNodePolicy", "status") == (constants(PolicyConditionType), constants(PolicyReason))
    assert words("NPUNodeState", "status.rollout") == (constants(NodeConditionType), constants(NodeReason))
    binder = words("NPUNodeState", "status.inventory", "status.bindings")
    assert binder == (constants(ConditionType), constants(ConditionReason))
    writer = words("NPUNodeState", "status.profiles")
    assert writer == (constants(WriterConditionType), constants(ProfilesConditionReason) | constants(RecordReason))
    assert words("VGPUProfileMap", "status") == (constants(MapConditionType), constants(MapReason))
    publisher = words("NPUNodeState", "status.publication")
    assert publisher == (constants(PublicationConditionType), constants(PublicationConditionReason))


def test_every_reason_of_a_device_and_of_a_blocker_is_in_the_reference() -> None:
    devices, published, vgpus = REASONS["NPUNodeState"]
    assert {reason.reason for reason in vgpus.reasons} == constants(ProfileReason)
    assert {reason.reason for reason in devices.reasons} == constants(Reason)
    assert {reason.status for reason in devices.reasons} == constants(DeviceState)
    assert {reason.reason for reason in published.reasons} == constants(PublicationReason)
    (blockers,) = REASONS["NPUNodePolicy"]
    assert {reason.reason for reason in blockers.reasons} == constants(BlockerReason)
