"""HTTP to replicas: answers whole and in chunks, connections that are kept, and all that may be wrong with one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from marketplace.gateway.replicas import MAX_HEAD_BYTES, Answer, NotReached, ReplicaLost, Replicas
from protocol.bodies import collect_stream

pytestmark = pytest.mark.asyncio

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nRetry-After: 3\r\n\r\nhello"
LARGE = 32 << 20  # bytes: more than the sockets between the two hold
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"


@dataclass
class Server:
    """Sends what `script` says, one element per request; None ends the connection."""

    url: str = ""
    script: list[bytes | None] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                answer = self.script.pop(0)
                if answer is not None:
                    writer.write(answer)
                    await writer.drain()
                if answer is None or b"Connection: close" in answer:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.open -= 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    """Ends after `replicas`, whose connections it waits for."""
    scripted = Server()
    listening = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/chat/completions"
    yield scripted
    listening.close()
    await until(lambda: not scripted.open)


@pytest_asyncio.fixture
async def replicas() -> AsyncIterator[Replicas]:
    made = Replicas()
    yield made
    made.close()


async def ask(replicas: Replicas, server: Server, seconds: float = 20.0) -> Answer:
    return await replicas.post(server.url, b"{}", {"x-intarsia-ticket": "t"}, seconds=seconds)


async def read(answer: Answer) -> bytes:
    body = await collect_stream(answer.chunks(), limit=LARGE)
    answer.close()
    return body


async def test_answers_are_read_and_their_connection_is_used_again(server: Server, replicas: Replicas) -> None:
    server.script = [WHOLE, CHUNKED, WHOLE]
    bodies = []
    for _ in range(3):
        answer = await ask(replicas, server)
        bodies.append(await read(answer))
        answer.close()
    assert bodies == [b"hello", b"hello!", b"hello"] and answer.status == 200
    assert answer.headers["retry-after"] == "3"
    assert server.connections == 1
    assert server.requests[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nx-intarsia-ticket: t\r\n\r\n{}" in server.requests[0]


async def test_requests_at_once_have_connections_of_their_own(server: Server, replicas: Replicas) -> None:
    server.script = [WHOLE] * 5
    answers = await asyncio.gather(*(ask(replicas, server) for _ in range(5)))
    assert [await read(answer) for answer in answers] == [b"hello"] * 5
    assert server.connections == 5


async def test_an_answer_that_was_not_read_to_its_end_leaves_no_connection_behind(
    server: Server, replicas: Replicas
) -> None:
    server.script = [WHOLE.replace(b": 5", b": 500"), WHOLE]
    answer = await ask(replicas, server)
    answer.close()
    assert await read(await ask(replicas, server)) == b"hello"
    assert server.connections == 2


async def test_a_connection_that_the_server_ended_is_not_used_again(server: Server, replicas: Replicas) -> None:
    server.script = [WHOLE.replace(b"Retry-After: 3", b"Connection: close"), WHOLE]
    for _ in range(2):
        assert await read(await ask(replicas, server)) == b"hello"
    assert server.connections == 2


@pytest.mark.parametrize(
    "sent",
    [
        None,
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    ],
    ids=["ended", "not HTTP", "large head", "two lengths"],
)
async def test_what_is_no_answer_is_a_lost_replica(server: Server, replicas: Replicas, sent: bytes | None) -> None:
    server.script = [sent]
    with pytest.raises(ReplicaLost):
        await ask(replicas, server)


@pytest.mark.parametrize("sent", [WHOLE[:-1], CHUNKED[:-5], CHUNKED[:-12] + b"x"], ids=["short", "open", "no chunk"])
async def test_a_body_that_does_not_end_is_a_lost_replica(server: Server, replicas: Replicas, sent: bytes) -> None:
    server.script = [sent.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")]
    with pytest.raises(ReplicaLost):
        await read(await ask(replicas, server))


async def test_a_replica_that_says_nothing_is_lost_in_time(server: Server, replicas: Replicas) -> None:
    server.script = [b""]
    with pytest.raises(ReplicaLost, match="too long"):
        await ask(replicas, server, seconds=0.05)


async def test_bytes_after_an_answer_are_no_part_of_the_next_one(server: Server, replicas: Replicas) -> None:
    server.script = [WHOLE + WHOLE, CHUNKED]
    assert await read(await ask(replicas, server)) == b"hello"
    assert await read(await ask(replicas, server)) == b"hello!"
    assert server.connections == 2


async def test_a_port_where_nobody_listens_is_not_reached(server: Server, replicas: Replicas) -> None:
    with pytest.raises(NotReached):
        await replicas.post("http://127.0.0.1:9/v1/completions", b"", {}, seconds=5)


async def test_a_header_cannot_begin_another_one(server: Server, replicas: Replicas) -> None:
    with pytest.raises(ValueError, match="line feed"):
        await replicas.post(server.url, b"", {"x-request-id": "a\r\nx-other: b"}, seconds=5)
    assert server.connections == 0


async def test_a_reader_that_is_slow_holds_the_replica_up(server: Server, replicas: Replicas) -> None:
    server.script = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE + b"x" * LARGE]
    answer = await ask(replicas, server)
    await until(lambda: answer._connection._paused)
    assert answer._connection._buffered < LARGE / 8
    assert len(await read(answer)) == LARGE
    assert answer._connection.reusable
