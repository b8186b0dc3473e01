"""Numbers and switches as the kernel reads them from a write (lib/kstrtox.c)."""

import re

_UNSIGNED = re.compile(r"\+?(?:0[xX](?P<hex>[0-9a-fA-F]+)|(?P<octal>0[0-7]*)|(?P<decimal>[1-9][0-9]*))\n?")


def unsigned(text: str, bits: int) -> int | None:
    """kstrtou16 and its like with base 0: decimal, 0x hexadecimal or 0 octal, one newline after it; None for anything
    else, blanks, a minus and too large a number included. A NUL ends the text.
    """
    match = _UNSIGNED.fullmatch(text.split("\0", 1)[0])
    if match is None:
        return None
    if match["hex"]:
        number = int(match["hex"], 16)
    elif match["octal"]:
        number = int(match["octal"], 8)
    else:
        number = int(match["decimal"])
    return number if number < 1 << bits else None


def switch(text: str) -> bool | None:
    """kstrtobool: the first letter decides, for "on" and "off" the second; None for anything else."""
    first, second = text[:1].lower(), text[1:2].lower()
    if first in ("y", "t", "1") or (first, second) == ("o", "n"):
        return True
    if first in ("n", "f", "0") or (first, second) == ("o", "f"):
        return False
    return None
