"""Numbers and switches as the kernel reads them from a write (lib/kstrtox.c, lib/vsprintf.c)."""

import re

_UNSIGNED = re.compile(r"\+?(?:0[xX](?P<hex>[0-9a-fA-F]+)|(?P<octal>0[0-7]*)|(?P<decimal>[1-9][0-9]*))\n?")

_DECIMAL = re.compile(r"\+?([0-9]+)\n?", re.ASCII)
_MOST_DIGITS = 20  # of a 64-bit number
_HEXADECIMAL = re.compile(r"\s*(?:0[xX](?=[0-9a-fA-F]))?([0-9a-fA-F]+)")


def unsigned(text: str, bits: int) -> int | None:
    """kstrtou16 and its like with base 0: decimal, 0x hexadecimal or 0 octal, one newline after it; None for anything
    else, blanks, a minus and too large a number included. A NUL ends the text.
    """
    match = _UNSIGNED.fullmatch(text.split("\0", 1)[0])
    if match is None:
        return None
    number: int | None
    if match["hex"]:
        number = int(match["hex"], 16)
    elif match["octal"]:
        number = int(match["octal"], 8)
    else:
        number = _number(match["decimal"])
    return number if number is not None and number < 1 << bits else None


def decimal(text: str, bits: int) -> int | None:
    """The same with base 10."""
    match = _DECIMAL.fullmatch(text.split("\0", 1)[0])
    number = None if match is None else _number(match[1])
    return number if number is not None and number < 1 << bits else None


def _number(digits: str) -> int | None:
    """None for more than 64 bits hold; Python refuses to read thousands of digits."""
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= _MOST_DIGITS else None


def switch(text: str) -> bool | None:
    """kstrtobool: the first letter decides, for "on" and "off" the second; None for anything else."""
    first, second = text[:1].lower(), text[1:2].lower()
    if first in ("y", "t", "1") or (first, second) == ("o", "n"):
        return True
    if first in ("n", "f", "0") or (first, second) == ("o", "f"):
        return False
    return None


def hexadecimals(text: str, most: int) -> list[int]:
    """sscanf with "%x %x …": the numbers up to the first that is none, ``most`` at most, each cut to 32 bits."""
    found: list[int] = []
    rest = text.split("\0", 1)[0]
    while len(found) < most and (match := _HEXADECIMAL.match(rest)):
        found.append(int(match[1], 16) & 0xFFFF_FFFF)
        rest = rest[match.end() :]
    return found
