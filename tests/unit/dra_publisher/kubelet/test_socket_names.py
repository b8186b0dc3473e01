"""Names of sockets: those of Kubernetes' own helper, and never longer than a socket's path may be."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_publisher.kubelet.names import MAX_PATH, SocketNameError, SocketNames
from tests.builders.examples import at_least

UID = "0b9e0e6f-6a1c-4b0e-9f0e-2d7c3a5b8e11"


def test_the_only_instance_has_the_plain_names() -> None:
    names = SocketNames("npu.rebellions.ai", None)
    assert names.registration == "/var/lib/kubelet/plugins_registry/npu.rebellions.ai-reg.sock"
    assert names.endpoint == "/var/lib/kubelet/plugins/npu.rebellions.ai/dra.sock"


def test_an_instance_of_several_has_its_pods_uid_in_them() -> None:
    names = SocketNames("npufleet.io", UID)
    assert names.registration == f"/var/lib/kubelet/plugins_registry/npufleet.io-{UID}-reg.sock"
    assert names.endpoint == f"/var/lib/kubelet/plugins/npufleet.io/dra-{UID}.sock"


# Hashes as the Go helper makes them, by `printf %s … | openssl dgst -sha256 -binary | head -c N | base64`.
def test_a_uid_that_does_not_fit_is_cut_to_a_hash() -> None:
    driver = "a" * 30 + ".example.com"
    names = SocketNames(driver, UID)
    assert names.registration.rpartition("/")[2] == f"{driver}-rIGTSz-uaNI-reg.sock"
    assert names.endpoint.rpartition("/")[2] == "dra-rIGTSz-uaNI.sock"


def test_the_longest_driver_name_is_cut_as_well() -> None:
    driver = "a" * 51 + ".example.com"
    names = SocketNames(driver, UID)
    assert names.registration.rpartition("/")[2] == "dra-oWf_m9dH1ua-sRY3AF_dSQ-reg.sock"
    assert names.endpoint.rpartition("/")[2] == "dra-rIGTSz-u.sock"


@pytest.mark.parametrize(
    "driver", ["", "UPPER.io", "a/b", "..", "a..b", "-a.io", "a.io-", "a" * 64, "a b", "a\n", "ü.io"]
)
def test_what_is_no_driver_name_gets_no_socket(driver: str) -> None:
    with pytest.raises(SocketNameError, match="driver name"):
        SocketNames(driver, UID)


@pytest.mark.parametrize("uid", ["", "../../etc", "a/b", "x" * 65, "a b", "-a"])
def test_what_is_no_uid_gets_no_socket(uid: str) -> None:
    with pytest.raises(SocketNameError, match="UID"):
        SocketNames("npufleet.io", uid)


def test_a_directory_that_leaves_no_room_is_told() -> None:
    with pytest.raises(SocketNameError, match="longer than the 107 bytes"):
        SocketNames("npufleet.io", UID, kubelet="/var/lib/" + "k" * 100)


def driver_of(length: int, dot: int) -> str:
    """A name of so many characters, with a dot where one may be."""
    return "".join("." if 0 < place < length - 1 and place % dot == 0 else "a" for place in range(length))


UIDS = st.integers(0, 2**128 - 1).map(lambda number: str(UUID(int=number)))


def test_every_driver_name_has_sockets_that_fit_and_that_no_other_instance_has() -> None:
    with at_least(2000, "socket names") as examples:

        @settings(max_examples=2000, deadline=None)
        @given(st.builds(driver_of, st.integers(1, 63), st.integers(2, 40)), UIDS, UIDS)
        def check(driver: str, one: str, other: str) -> None:
            examples.one()
            names = SocketNames(driver, one)
            assert len(names.registration) <= MAX_PATH
            assert len(names.endpoint) <= MAX_PATH
            if one != other:
                others = SocketNames(driver, other)
                assert {names.registration, names.endpoint}.isdisjoint({others.registration, others.endpoint})

        check()
