"""A network cable that can be cut: a TCP relay in a thread of its own.

While it is cut it takes connections and bytes and passes nothing on, as a network that drops packets does; when it is
whole again, what was under way arrives late.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class Cable:
    """One relay, from a port of its own to another one of this machine."""

    def __init__(self, port: int) -> None:
        """Relay to `port` from now on."""
        self._to = port
        self._loop = asyncio.new_event_loop()
        self._whole = asyncio.Event()
        self._whole.set()
        # The loop holds tasks weakly, and a connection that neither reads nor writes is not held by it either.
        self._relays: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cable", daemon=True)
        self._thread.start()
        listening = asyncio.start_server(self._relay, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result(10)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Let nothing through."""
        self._loop.call_soon_threadsafe(self._whole.clear)

    def mend(self) -> None:
        """Let everything through, what was held back first."""
        self._loop.call_soon_threadsafe(self._whole.set)

    def close(self) -> None:
        """End the relay and its connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        # A connection that was taken just before begins its task afterwards.
        while tasks := asyncio.all_tasks(self._loop) - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = None
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)
        try:
            await self._whole.wait()
            back, there = await asyncio.open_connection("127.0.0.1", self._to)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pipe(reader, there))
                group.create_task(self._pipe(back, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, there):
                if end is not None:
                    end.transport.abort()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._whole.wait()
            writer.write(data)
            await writer.drain()
        await self._whole.wait()
        with suppress(OSError):
            writer.write_eof()
