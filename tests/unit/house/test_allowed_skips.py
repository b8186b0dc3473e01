"""The skip watch fails a run with a skip that nobody listed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.allowed_skips import allowed_ids

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("ci", "body", "code"),
    [
        ("", "import pytest\ndef test_a():\n    pytest.skip('no card here')\n", 1),
        ("true", "import pytest\ndef test_a():\n    pytest.skip('no card here')\n", 1),
        ("", "def test_a():\n    assert 1\n", 0),
    ],
)
def test_unlisted_skip_fails_the_run(tmp_path: Path, ci: str, body: str, code: int) -> None:
    (tmp_path / "test_sample.py").write_text(body)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.allowed_skips",
        "-p",
        "no:cacheprovider",
        str(tmp_path),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={"CI": ci, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("skipped and not in" in done.stdout) == (code == 1)


def test_list_holds_ids_with_reasons() -> None:
    assert allowed_ids("# note\ntests/x.py::test_y  needs a card\n\n") == {"tests/x.py::test_y"}
