"""`npufleet devices --host-root`: the devices of one host as its own files tell; nothing is written there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.devices.host import read_host
from cli.devices.rows import Row
from cli.errors import ExitCode
from cli.main import main
from node_host.acting.journal import JOURNAL, Journal, JournalEntry
from node_host.evidence.checkpoint import CHECKPOINT, Checkpoint, ClaimState, PreparedClaim, PreparedDevice, encode
from node_host.evidence.publication import PUBLISHED
from node_host.handover.publisher_half import PublisherHalf
from simulated_node.description_files import load_description
from simulated_node.kernel import SimulatedKernel

VETOED, USED, VFIO, FREE = "0000:21:00.0", "0000:24:00.0", "0000:26:00.0", "0000:27:00.0"
SHAPE = "0" * 64


@pytest.fixture
def kernel(tmp_path: Path) -> SimulatedKernel:
    return SimulatedKernel(tmp_path / "host", load_description("node-hostile"))


def rows(kernel: SimulatedKernel) -> dict[str, Row]:
    """By address."""
    return {row.address: row for row in read_host(kernel.root).rows}


def write(kernel: SimulatedKernel, path: str, content: bytes) -> None:
    place = kernel.host().local(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def checkpoint(boot_id: str, *addresses: str) -> bytes:
    devices = tuple(
        PreparedDevice(
            "npufleet.io", "n", f"vfio-{at.translate({58: '-', 46: '-'})}", at, ("npu",), (), None, False, SHAPE
        )
        for at in addresses
    )
    claim = PreparedClaim("uid-1", "team", "gpu", boot_id, ClaimState.COMPLETED, devices)
    return encode(Checkpoint({claim.uid: claim}))


def test_each_accelerator_is_told_with_its_driver_group_and_hindrance(kernel: SimulatedKernel) -> None:
    found = rows(kernel)
    assert len(found) == 8
    assert (found[FREE].product, found[FREE].driver, found[FREE].iommu_group) == ("RBLN-CA25", "rebellions", 26)
    assert found[VFIO].driver == "vfio-pci"
    assert str(found[VETOED].why).startswith("Vetoed: 0000:01:00.0 of its IOMMU group: network interface ens1")
    assert found[USED].used_by[0].startswith("trainer (pid ")
    assert str(found[FREE].why) == "NotOffered: not in /run/npufleet/published.json of this boot"


def test_what_the_publisher_keeps_on_the_host_is_told(kernel: SimulatedKernel) -> None:
    publisher = PublisherHalf(kernel.host())
    publisher.write_published([VFIO, FREE], kernel.boot_id)
    publisher.offer(FREE, kernel.boot_id, SHAPE)
    write(kernel, CHECKPOINT, checkpoint(kernel.boot_id, VFIO))
    found = rows(kernel)
    assert found[VFIO].offers
    assert found[VFIO].why is None
    assert [str(one) for one in found[VFIO].allocations or ()] == ["claim team/gpu, completed"]
    assert str(found[FREE].why).startswith("HandedOver: ")


def test_claims_and_tokens_of_another_boot_are_told_apart(kernel: SimulatedKernel) -> None:
    PublisherHalf(kernel.host()).offer(FREE, "another-boot", SHAPE)
    write(kernel, CHECKPOINT, checkpoint("another-boot", VFIO, "0000:99:00.0"))
    found = rows(kernel)
    assert str(found[FREE].why).startswith("NotOffered")
    assert "has a claim on it from before the last boot" in str(found[VFIO].why)
    assert [str(one) for one in found[VFIO].allocations or ()] == ["claim team/gpu, prepared before the last boot"]
    assert str(found["0000:99:00.0"].why).startswith("DeviceMissing")


def test_device_that_npufleet_bound_tells_what_it_was(kernel: SimulatedKernel) -> None:
    journal = Journal(kernel.host().local(JOURNAL))
    journal.load()
    journal.put(VFIO, JournalEntry("rebellions", "vfio-pci", kernel.boot_id, "1eff:1220"))
    assert "npufleet bound it, before it was on rebellions" in str(rows(kernel)[VFIO].why)


def test_files_that_cannot_be_read_leave_what_they_tell_unknown(
    kernel: SimulatedKernel, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (CHECKPOINT, PUBLISHED, JOURNAL):
        write(kernel, path, b"{broken")
    before = snapshot(kernel.root)
    assert main(["devices", "--host-root", str(kernel.root)]) == 0
    told = capsys.readouterr()
    for line in told.out.splitlines()[1:]:
        assert re.split(" {3,}", line)[4:6] == ["?", "?"]
    for path in (CHECKPOINT, PUBLISHED, JOURNAL):
        assert path in told.err
    assert snapshot(kernel.root) == before, "broken files stay where they are"
    assert not kernel.writes


def test_json_has_the_same_fields_as_of_a_cluster(kernel: SimulatedKernel, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--host-root", str(kernel.root), "-o", "json"]) == 0
    first = json.loads(capsys.readouterr().out)["devices"][0]
    assert (first["node"], first["address"], first["mode"], first["reason"]) == ("", VETOED, "", "Vetoed")


@pytest.mark.parametrize(("root", "code"), [("absent", ExitCode.USAGE), ("empty", ExitCode.INTERNAL)])
def test_what_is_no_host_is_told_in_one_line(
    root: str, code: ExitCode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["devices", "--host-root", str(tmp_path / root)]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_node_and_a_host_root_do_not_go_together(tmp_path: Path) -> None:
    assert main(["devices", "node-0", "--host-root", str(tmp_path)]) == 2


def snapshot(root: Path) -> dict[str, bytes]:
    places = [root / "var/lib/npufleet", root / "run/npufleet"]
    return {str(path): path.read_bytes() for place in places for path in place.rglob("*") if path.is_file()}
