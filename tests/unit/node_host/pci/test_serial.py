"""Serial numbers: the capability of config space first, then VPD, and nothing from anything that is not one."""

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from node_host.pci.serial import device_serial_number, serial_number, vpd_serial_number

EXAMPLES = 2000


def config(*capabilities: tuple[int, int, bytes], size: int = 4096) -> bytes:
    """Config space with extended capabilities (id, offset of the next, body) laid out from 0x100."""
    space = bytearray(size)
    offset = 0x100
    for identifier, following, body in capabilities:
        space[offset : offset + 4] = struct.pack("<I", identifier | 1 << 16 | following << 20)
        space[offset + 4 : offset + 4 + len(body)] = body
        offset = following
    return bytes(space[:size])


SERIAL = bytes.fromhex("7766554433221100")


def vpd(*sections: tuple[int, bytes], end: bytes = b"\x78") -> bytes:
    return b"".join(bytes([tag]) + struct.pack("<H", len(body)) + body for tag, body in sections) + end


def keyword(name: bytes, value: bytes) -> bytes:
    return name + bytes([len(value)]) + value


def test_the_capability_is_printed_as_lspci_prints_it() -> None:
    assert device_serial_number(config((3, 0, SERIAL))) == "00-11-22-33-44-55-66-77"
    assert device_serial_number(config((1, 0x148, b""), (3, 0, SERIAL))) == "00-11-22-33-44-55-66-77"


def test_no_capability_no_number() -> None:
    assert device_serial_number(b"") is None
    assert device_serial_number(config((3, 0, SERIAL))[:64]) is None
    assert device_serial_number(config((1, 0, b""))) is None
    assert device_serial_number(config((3, 0, b"\0" * 8))) is None
    assert device_serial_number(config((3, 0, b"\xff" * 8))) is None
    assert device_serial_number(config((3, 0, SERIAL))[:0x108]) is None
    assert device_serial_number(b"\xff" * 4096) is None


def test_a_list_of_capabilities_that_runs_in_a_circle_ends() -> None:
    assert device_serial_number(config((1, 0x140, b""), (2, 0x100, b""))) is None


def test_vpd_is_asked_only_without_the_capability() -> None:
    asked = []

    def read_vpd() -> bytes:
        asked.append(1)
        return vpd((0x82, b"A card"), (0x90, keyword(b"PN", b"X1") + keyword(b"SN", b" RB100-0001 ")))

    assert serial_number(lambda: config((3, 0, SERIAL)), read_vpd) == "00-11-22-33-44-55-66-77"
    assert asked == []
    assert serial_number(lambda: None, read_vpd) == "RB100-0001"
    assert serial_number(lambda: None, lambda: None) is None


def test_vpd_that_ends_early_or_is_not_printable_has_no_number() -> None:
    whole = vpd((0x90, keyword(b"SN", b"RB100-0001")))
    assert vpd_serial_number(whole) == "RB100-0001"
    assert vpd_serial_number(whole[:8]) is None
    assert vpd_serial_number(vpd((0x90, keyword(b"SN", b"two words")))) is None
    assert vpd_serial_number(vpd((0x90, keyword(b"SN", b"")))) is None
    assert vpd_serial_number(vpd((0x91, keyword(b"SN", b"writable")))) is None
    assert vpd_serial_number(b"\x78" + whole) is None


def test_any_bytes_are_survived() -> None:
    ran = 0

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(st.binary(max_size=600), st.integers(0, 0x200))
    def check(noise: bytes, offset: int) -> None:
        nonlocal ran
        ran += 1
        for found in (device_serial_number(bytes(offset) + noise), vpd_serial_number(noise)):
            assert found is None or (1 <= len(found) <= 64 and found.isascii() and " " not in found)

    check()
    print(f"examples: {ran}")
    assert ran >= EXAMPLES
