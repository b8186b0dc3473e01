"""The header of the test accelerator and its Python constants say the same."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.kernel.modules import sim_accel_abi as abi

HEADER = Path(__file__).with_name("sim_accel") / "sim_accel.h"


def evaluated(expressions: list[str], folder: Path) -> dict[str, int]:
    """What a C compiler makes of the expressions with the header included."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is needed: the kernel lab builds modules with it"
    lines = "".join(f'printf("%lu\\n", (unsigned long)({expression}));\n' for expression in expressions)
    source = folder / "values.c"
    source.write_text(f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n{lines}return 0;\n}}\n')
    program = folder / "values"
    subprocess.run([compiler, "-Wall", "-Werror", "-o", program, source], check=True, timeout=60)
    output = subprocess.run([program], check=True, timeout=10, capture_output=True, text=True).stdout
    return dict(zip(expressions, map(int, output.split()), strict=True))


def test_call_numbers_and_sizes_are_those_of_the_header(tmp_path: Path) -> None:
    expected = {}
    for name, (number, layout) in abi.CALLS.items():
        expected[f"DRM_IOCTL_SIM_ACCEL_{name.upper()}"] = number
        expected[f"sizeof(struct sim_accel_{name})"] = layout.size
    expected |= {"SIM_ACCEL_MAX_BUSY_US": abi.MAX_BUSY_US, "SIM_ACCEL_MAX_ERROR": abi.MAX_ERROR}
    assert evaluated(list(expected), tmp_path) == expected


def test_fields_lie_where_the_layouts_put_them(tmp_path: Path) -> None:
    fields = {
        "submit": ("jobs", "busy_us"),
        "alloc": ("size", "handle", "pad"),
        "free": ("handle", "pad"),
        "wait": ("point", "deadline_ns"),
        "release": ("steps", "point"),
        "fail": ("error", "pad"),
    }
    assert fields.keys() == abi.CALLS.keys()
    width = {"I": 4, "Q": 8, "q": 8}
    expected = {}
    for name, members in fields.items():
        offset = 0
        for member, code in zip(members, abi.CALLS[name][1].format.lstrip("="), strict=True):
            expected[f"__builtin_offsetof(struct sim_accel_{name}, {member})"] = offset
            offset += width[code]
    assert evaluated(list(expected), tmp_path) == expected
