"""The checkpoint: what is written is read back, what is not whole is refused, and older readers are thought of."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_host.evidence.checkpoint import (
    CHECKPOINT,
    Checkpoint,
    CheckpointUnreadableError,
    ClaimState,
    PreparedClaim,
    PreparedDevice,
    decode,
    encode,
    read_checkpoint,
)
from node_host.host.kernel_files import KernelFiles

SHAPE = "ab" * 32
DEVICE = PreparedDevice(
    driver="npu.rebellions.ai",
    pool="node-rebel100",
    device="vfio-0000-27-00-0",
    address="0000:27:00.0",
    requests=("npu",),
    cdi_ids=("k8s.npu.rebellions.ai/claim=uid-1-npu-0",),
    share_id=None,
    admin_access=False,
    shape=SHAPE,
)
CLAIM = PreparedClaim("uid-1", "team-a", "vm-npu", "boot-1", ClaimState.COMPLETED, (DEVICE,))
CHECKPOINT_OF_ONE = Checkpoint({"uid-1": CLAIM}, {"0000:27:00.0": SHAPE})

_EXAMPLES = 2000


def _texts() -> st.SearchStrategy[str]:
    return st.text(max_size=8)


def _addresses() -> st.SearchStrategy[str]:
    return st.builds(lambda bus, slot: f"0000:{bus:02x}:{slot:02x}.0", st.integers(0, 255), st.integers(0, 31))


_DIGESTS = st.sampled_from([SHAPE, "0" * 64, "f" * 64])
_DEVICES = st.builds(
    PreparedDevice,
    driver=_texts(),
    pool=_texts(),
    device=_texts(),
    address=_addresses(),
    requests=st.lists(_texts(), max_size=2).map(tuple),
    cdi_ids=st.lists(_texts(), max_size=2).map(tuple),
    share_id=st.none() | _texts(),
    admin_access=st.booleans(),
    shape=_DIGESTS,
    nodes=st.lists(_texts(), max_size=2).map(tuple),
    consumed=st.dictionaries(_texts(), _texts(), max_size=2),
    is_earlier=st.booleans(),
)
_CLAIMS = st.builds(
    PreparedClaim,
    uid=_texts(),
    namespace=_texts(),
    name=_texts(),
    boot_id=_texts(),
    state=st.sampled_from(ClaimState),
    devices=st.lists(_DEVICES, max_size=2).map(tuple),
    pod_claim_name=_texts(),
)
_CHECKPOINTS = st.builds(
    Checkpoint,
    claims=st.lists(_CLAIMS, max_size=2).map(lambda claims: {claim.uid: claim for claim in claims}),
    published=st.dictionaries(_addresses(), _DIGESTS, max_size=2),
    doubt=st.none() | _texts(),
)


def test_what_is_written_is_read_back() -> None:
    ran = 0

    @settings(max_examples=_EXAMPLES, deadline=None, database=None)
    @given(_CHECKPOINTS)
    def check(checkpoint: Checkpoint) -> None:
        nonlocal ran
        ran += 1
        assert decode(encode(checkpoint)) == checkpoint

    check()
    print(f"{ran} examples")
    assert ran >= _EXAMPLES


def test_a_file_with_any_byte_changed_is_refused_or_says_the_same() -> None:
    """Only bytes outside of what is said (`version`, blanks) may change without notice."""
    data = encode(CHECKPOINT_OF_ONE)
    start = data.index(b'"checksum"')
    for place in range(start, len(data) - 2):
        broken = data[:place] + bytes([data[place] ^ 0x01]) + data[place + 1 :]
        with pytest.raises(CheckpointUnreadableError):
            decode(broken)


def test_a_file_cut_short_anywhere_is_refused() -> None:
    data = encode(CHECKPOINT_OF_ONE).rstrip()
    for length in range(len(data)):
        with pytest.raises(CheckpointUnreadableError):
            decode(data[:length])


def _document(change: Callable[[dict[str, Any]], None], **head: Any) -> bytes:
    content = json.loads(encode(CHECKPOINT_OF_ONE))["content"]
    change(content)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({"version": 1, "minReader": 1, "checksum": checksum, "content": content} | head).encode()


def test_fields_of_a_newer_version_are_passed_over() -> None:
    def add(content: dict[str, Any]) -> None:
        content["later"] = {"a": 1}
        content["claims"]["uid-1"]["later"] = True
        content["claims"]["uid-1"]["devices"][0]["later"] = [1]

    assert decode(_document(add, version=7, later="x")) == CHECKPOINT_OF_ONE


def test_a_version_that_needs_a_newer_reader_is_refused_with_its_name() -> None:
    with pytest.raises(CheckpointUnreadableError, match="version 7 needs a reader of 2; this one is 1"):
        decode(_document(lambda content: None, version=7, minReader=2))


_DEVICE_FIELDS = ("driver", "pool", "device", "address", "requests", "cdiIDs", "adminAccess", "shape")


@pytest.mark.parametrize("name", [*_DEVICE_FIELDS, "shareID", "earlier"])
@pytest.mark.parametrize("value", [7, {}, [7], ""])
def test_a_device_with_a_field_of_another_type_is_refused(name: str, value: Any) -> None:
    if value == "" and name in ("driver", "pool", "device", "shareID"):
        return

    def change(content: dict[str, Any]) -> None:
        content["claims"]["uid-1"]["devices"][0][name] = value

    with pytest.raises(CheckpointUnreadableError, match="a device of claim 'uid-1'"):
        decode(_document(change))


@pytest.mark.parametrize("name", _DEVICE_FIELDS)
def test_a_device_without_a_field_is_refused(name: str) -> None:
    with pytest.raises(CheckpointUnreadableError, match="a device of claim 'uid-1'"):
        decode(_document(lambda content: content["claims"]["uid-1"]["devices"][0].pop(name)))


@pytest.mark.parametrize("name", ["namespace", "name", "bootID", "state", "devices"])
@pytest.mark.parametrize("value", [None, 7, {}])
def test_a_claim_with_a_field_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(CheckpointUnreadableError, match="claim 'uid-1'"):
        decode(_document(lambda content: content["claims"]["uid-1"].__setitem__(name, value)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("claims", []),
        ("claims", {"uid": 1}),
        ("published", []),
        ("published", {"23:00.0": SHAPE}),
        ("published", {"0000:23:00.0": "short"}),
        ("doubt", 1),
    ],
)
def test_content_of_another_form_is_refused(name: str, value: Any) -> None:
    with pytest.raises(CheckpointUnreadableError):
        decode(_document(lambda content: content.__setitem__(name, value)))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"version":1}', b"[" * 100_000, b" " * (17 << 20)]
)
def test_what_is_no_checkpoint_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointUnreadableError):
        decode(data)


def test_the_claims_of_a_device_are_told_in_the_order_of_their_uids() -> None:
    later, other = replace(CLAIM, uid="uid-2"), replace(CLAIM, uid="uid-0", devices=())
    checkpoint = Checkpoint({"uid-2": later, "uid-1": CLAIM, "uid-0": other})
    assert checkpoint.claims_of("0000:27:00.0") == (CLAIM, later)
    assert checkpoint.claims_of("0000:28:00.0") == ()


def test_a_host_without_a_checkpoint_has_an_empty_one(tmp_path: Path) -> None:
    assert read_checkpoint(KernelFiles(tmp_path)) == Checkpoint()


def test_a_checkpoint_of_a_host_is_read(tmp_path: Path) -> None:
    host = KernelFiles(tmp_path)
    host.local(CHECKPOINT).parent.mkdir(parents=True)
    host.local(CHECKPOINT).write_bytes(encode(CHECKPOINT_OF_ONE))
    assert read_checkpoint(host) == CHECKPOINT_OF_ONE


def test_a_checkpoint_that_cannot_be_read_says_where_and_why(tmp_path: Path) -> None:
    host = KernelFiles(tmp_path)
    host.local(CHECKPOINT).mkdir(parents=True)
    assert read_checkpoint(host) == f"{CHECKPOINT}: Is a directory"
    host.local(CHECKPOINT).rmdir()
    host.local(CHECKPOINT).write_bytes(b"junk")
    assert str(read_checkpoint(host)).startswith(f"{CHECKPOINT}: not JSON")


def test_a_file_of_any_length_costs_no_memory(tmp_path: Path) -> None:
    host = KernelFiles(tmp_path)
    host.local(CHECKPOINT).parent.mkdir(parents=True)
    with host.local(CHECKPOINT).open("wb") as file:
        file.truncate(1 << 40)
    assert read_checkpoint(host) == f"{CHECKPOINT}: more than 16777216 bytes"
