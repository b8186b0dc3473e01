"""The legal spelling that somebody probably meant: habits that other tools taught, undone one by one."""

import re
from collections.abc import Callable, Iterator
from typing import Final


def _unit(found: re.Match[str]) -> str:
    number, letter, binary = found.groups()
    return number + (letter.upper() if binary or letter not in "kK" else "k") + binary.lower()


_HABITS: Final[tuple[Callable[[str], str], ...]] = (
    str.strip,
    # What a driver or a shop writes before the name: GRID T4-8Q, NVIDIA L40S.
    lambda text: re.sub(r"^(?:NVIDIA|GRID|Huawei|Intel|Rebellions)\s+", "", text.strip()),
    lambda text: re.sub(r"^(Ascend|RBLN|Tesla)\s+", r"\1-", text.strip()),
    str.lower,
    lambda text: re.sub(r"\b0x", "", text.lower()),
    # lspci leaves out the domain 0000.
    lambda text: f"0000:{text.lower()}",
    lambda text: re.sub(r"\s+", "", text),
    # 96GB, 96 GiB: quantities have no B.
    lambda text: re.sub(r"\s+", "", text).removesuffix("B"),
    lambda text: re.sub(r"\s+", "", text).upper().replace("IB", "i").removesuffix("B"),
    lambda text: re.sub(r"[\s_.]+", "-", text.strip().lower()).strip("-"),
    lambda text: text.lstrip("-+"),
    # 8gi, 8 gb: the letters of quantities are upper case, but for k.
    lambda text: re.sub(r"(?i)^([0-9.]+)\s*([kmgtpe])(i?)b?$", _unit, text.strip()),
)


def fitting(text: str, pattern: re.Pattern[str], longest: int | None) -> str:
    """A string near ``text`` that the pattern takes; "" when none is found."""
    for candidate in _candidates(text):
        fits = candidate and candidate != text and len(candidate) <= (longest or len(candidate))
        if fits and pattern.search(candidate):
            return candidate
    return ""


def _candidates(text: str) -> Iterator[str]:
    if len(text) > 1024:
        return
    for habit in _HABITS:
        yield habit(text)
