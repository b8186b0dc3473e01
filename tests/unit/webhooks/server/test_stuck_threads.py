"""A review that is judged for ever keeps no process from its end."""

from __future__ import annotations

import subprocess
import sys

NEVER_JUDGED = """
import asyncio, threading
from tests.builders.review_server import ask, review_server
from tests.builders.reviews import policy, review_document
from webhooks.server.limits import Limits

class Stuck:
    missed = ()
    def __getattr__(self, name):
        threading.Event().wait()

async def main():
    async with review_server(limits=Limits(inline_bytes=0), view=Stuck) as server, server.client() as client:
        status, _ = await ask(client, server.url + "?timeout=0.5s", review_document(content=policy()))
        assert status == 504, status
        assert any(thread.name == "review" for thread in threading.enumerate())

asyncio.run(main())
"""


def test_process_ends_while_a_review_is_judged_for_ever() -> None:
    done = subprocess.run([sys.executable, "-c", NEVER_JUDGED], capture_output=True, text=True, timeout=40, check=False)
    assert (done.returncode, done.stderr) == (0, "")
