"""A host with a kubelet's directories, and an end for everything that a test starts on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.builders.kubelet_plugins import Node


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.chdir(tmp_path)  # names of sockets are short from where they are
    async with AsyncExitStack() as stack:
        node = Node(tmp_path, stack)
        node.registry.mkdir(parents=True)
        yield node
