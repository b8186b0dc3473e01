"""Orders from a file mean what they would mean on the API server, and all that is wrong with them is told at once."""

from pathlib import Path

import pytest

from node_host.state_record import DesiredFileError, read_desired_file, read_state
from tests.builders.binder import NODE_UID

TEXT = f"""\
apiVersion: npufleet.io/v1alpha1
kind: NPUNodeState
metadata: {{name: bench, generation: 1}}
spec:
  revision: 5d0f
  nodeUID: {NODE_UID}
  devices:
  - address: 0000:23:00.0
    identity: {{vendor: 1eff, device: "1250"}}
    mode: Passthrough
    intent: Apply
    onRelease: Restore
    decidedBy: {{policy: vms, rule: npus}}
"""


def written(directory: Path, content: str | bytes) -> Path:
    file = directory / "orders.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def test_an_address_without_quotes_is_an_address(tmp_path: Path) -> None:
    [device] = read_desired_file(written(tmp_path, TEXT)).spec.devices
    assert device.address == "0000:23:00.0"
    [bus] = read_desired_file(written(tmp_path, TEXT.replace("0000:23:00.0", "0000:10:00.0"))).spec.devices
    assert bus.address == "0000:10:00.0"


def test_all_faults_of_a_file_are_told_each_on_a_line_with_its_path(tmp_path: Path) -> None:
    wrong = TEXT.replace("mode: Passthrough", "mode: Pass").replace("intent: Apply", "intend: Apply")
    wrong = wrong.replace("onRelease: Restore", "onRelease: Keep").replace("revision: 5d0f", "revision: 7")
    file = written(tmp_path, wrong.replace("vendor: 1eff", "vendor: xx"))
    with pytest.raises(DesiredFileError) as caught:
        read_desired_file(file)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{file}: spec.") for line in lines)
    for place in (
        "revision",
        "devices[0].mode",
        "devices[0].intend",
        "devices[0].onRelease",
        "devices[0].identity.vendor",
    ):
        assert any(line.startswith(f"{file}: spec.{place}: ") for line in lines), place


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("][", "not YAML: "),
        (b"\xff\xfe\x00", "not UTF-8"),
        ("", "one object of kind NPUNodeState is wanted"),
        (TEXT + "---\n" + TEXT, "one object of kind NPUNodeState is wanted"),
        (TEXT + "kind: NPUNodeState\n", "is there twice"),
        ("[" * 5000, "not YAML: "),
    ],
)
def test_what_is_no_orders_is_told(tmp_path: Path, content: str | bytes, says: str) -> None:
    with pytest.raises(DesiredFileError, match=says):
        read_desired_file(written(tmp_path, content))


def test_an_object_that_cannot_be_understood_says_where_in_few_words() -> None:
    devices = [{"address": f"{number}"} for number in range(9)]
    fault = read_state({"metadata": {}, "spec": {"revision": "5d0f", "nodeUID": "x", "devices": devices}}).fault
    assert fault is not None
    assert fault.startswith("spec.devices[0].address: ")
    assert " more" in fault
