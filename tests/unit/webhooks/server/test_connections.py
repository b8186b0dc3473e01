"""Whoever opens connections and asks nothing takes no place from those who ask."""

from __future__ import annotations

import asyncio
import ssl

from tests.builders.review_server import ReviewServer, ask, review_server
from tests.builders.reviews import policy, review_document
from tests.builders.waiting import until
from webhooks.server.limits import Limits

GOOD = review_document(content=policy())
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(server: ReviewServer, first: bytes = b"") -> Stream:
    context = ssl.create_default_context(cadata=server.signer.pem.decode())
    port = int(server.url.split(":")[2].partition("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(first)
    return reader, writer


async def ended(stream: Stream) -> bool:
    """Whether the server has hung up, within a second."""
    try:
        async with asyncio.timeout(1):
            return await stream[0].read(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


async def test_connection_without_a_first_request_is_closed() -> None:
    async with review_server(limits=Limits(head_seconds=0.2)) as server, server.client() as client:
        silent, half = await opened(server), await opened(server, b"POST /validate HTTP/1.1\r\nHost: a\r\nX-")
        assert await ended(silent)
        assert await ended(half)
        assert (await ask(client, server.url, GOOD))[0] == 200


async def test_connection_without_a_handshake_is_closed() -> None:
    async with review_server(limits=Limits(head_seconds=0.2)) as server:
        port = int(server.url.split(":")[2].partition("/")[0])
        assert await ended(await asyncio.open_connection("127.0.0.1", port))


async def test_connection_that_has_asked_once_is_kept() -> None:
    async with review_server(limits=Limits(head_seconds=0.2)) as server:
        reader, writer = stream = await opened(server, b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404")
        await reader.readline()
        assert not await ended(stream)
        writer.close()


async def test_one_connection_too_many_costs_the_longest_idle_one() -> None:
    async with review_server(limits=Limits(connections=3, head_seconds=60)) as server, server.client() as client:
        streams = []
        for _ in range(3):
            streams.append(await opened(server))
            await until(lambda: len(streams) <= server.app.connections)
        assert (await ask(client, server.url, GOOD))[0] == 200
        assert await ended(streams[0])
        assert not await ended(streams[2])
        for _, writer in streams:
            writer.close()
