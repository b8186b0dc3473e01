"""Names of published devices: an address goes in and comes out again, and strangers' names are not read as ours."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.device_names import LONGEST_NAME, NamedKind, address_of, device_name

FLOOR = 2000
ADDRESSES = st.from_regex(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", fullmatch=True)
TEMPLATES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,12}[A-Za-z0-9])?", fullmatch=True)


@pytest.mark.parametrize(
    ("kind", "address", "more", "name"),
    [
        (NamedKind.VFIO, "0000:23:00.0", {}, "vfio-0000-23-00-0"),
        (NamedKind.NPU, "0001:a3:1f.7", {}, "npu-0001-a3-1f-7"),
        (NamedKind.VGPU, "0000:41:00.4", {}, "vgpu-0000-41-00-4"),
        (NamedKind.SOFT, "10000:01:00.0", {}, "soft-10000-01-00-0"),
        (NamedKind.HARD, "0000:81:00.0", {"template": "vir02", "number": 3}, "hard-0000-81-00-0-vir02-3"),
        (NamedKind.HARD, "0000:81:00.0", {"template": "vir05_1c_8G"}, "hard-0000-81-00-0-vir05-1c-8g-0"),
    ],
)
def test_names_are_those_of_the_documentation(
    kind: NamedKind, address: str, more: dict[str, object], name: str
) -> None:
    assert device_name(kind, address, **more) == name  # type: ignore[arg-type]
    assert address_of(name) == address


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpu-0",
        "vfio-0000-23-00",
        "vfio-0000-23-00-8",
        "vfio-0000-23-00-0-1",
        "VFIO-0000-23-00-0",
        "hard-0000-81-00-0",
        "hard-0000-81-00-0-vir02",
        "vfio-0000-23-00-0\n",
        "hard-0000-81-00-0-" + "x" * 60 + "-0",
    ],
)
def test_other_names_have_no_address(name: str) -> None:
    assert address_of(name) is None


@pytest.mark.parametrize(
    ("kind", "address", "more"),
    [
        (NamedKind.VFIO, "23:00.0", {}),
        (NamedKind.VFIO, "0000:23:00.0", {"template": "vir02"}),
        (NamedKind.HARD, "0000:23:00.0", {}),
        (NamedKind.HARD, "0000:23:00.0", {"template": "x" * 60}),
        (NamedKind.HARD, "0000:23:00.0", {"template": "größe"}),
        (NamedKind.HARD, "0000:23:00.0", {"template": "vir02", "number": -1}),
    ],
)
def test_what_makes_no_name_is_refused(kind: NamedKind, address: str, more: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"address|template|name of a device"):
        device_name(kind, address, **more)  # type: ignore[arg-type]


def test_every_name_gives_its_address_back() -> None:
    ran = 0

    @settings(max_examples=FLOOR, deadline=None, database=None)
    @given(st.sampled_from(NamedKind), ADDRESSES, TEMPLATES, st.integers(0, 63))
    def check(kind: NamedKind, address: str, template: str, number: int) -> None:
        nonlocal ran
        ran += 1
        more = {"template": template, "number": number} if kind is NamedKind.HARD else {}
        name = device_name(kind, address, **more)  # type: ignore[arg-type]
        assert len(name) <= LONGEST_NAME
        assert address_of(name) == address

    check()
    print(f"{ran} examples")
    assert ran >= FLOOR
