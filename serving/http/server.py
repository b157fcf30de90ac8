"""uvicorn with limits: time and size limits on request heads, disconnection of clients that do not read, and a drain
at SIGTERM that drops no stream."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from protocol.http1 import EdgeProtocol
from serving.engine import Engine

STALLED_SECONDS = 60.0  # a client that acknowledges nothing for so long is gone
_KEEP_ALIVE_SECONDS = 75
# An engine that cannot go on fails its requests at once; a step that hangs does not keep the process longer than this.
_FAILING_SECONDS = 4.0
_ENDING_SECONDS = 5  # for the last events of streams that the grace was too short for


class DrainingServer(uvicorn.Server):
    """A server that drains at the first signal: the engine refuses new requests and stops when all are answered.

    Requests still running after the grace period end with an error event. uvicorn waits for those events.
    """

    def __init__(self, config: uvicorn.Config, engine: Engine, grace_s: float) -> None:
        super().__init__(config)
        self._engine, self._grace = engine, grace_s
        engine.on_failure = self._fail
        if engine.failure is not None:
            self._fail()

    def _fail(self) -> None:
        """End the process: the engine has failed. Streams get their error events first. Called from any thread."""
        self.should_exit = True
        last = threading.Timer(_FAILING_SECONDS, os._exit, (1,))
        last.daemon = True
        last.start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start a drain. Runs in the main thread, so it does not wait."""
        if not self.should_exit:
            threading.Thread(target=self._engine.stop, args=(self._grace,), name="drain", daemon=True).start()
        super().handle_exit(sig, frame)


def make_server(app: ASGIApp, engine: Engine, grace_s: float) -> DrainingServer:
    """Make a server for `app` with all limits set; `serve` it on a socket from `limit_stalls`."""
    settings: dict[str, Any] = {
        "http": EdgeProtocol,
        "ws": "none",
        "log_config": None,  # uvicorn's messages go to the program's own log
        "access_log": False,
        "server_header": False,
        "timeout_keep_alive": _KEEP_ALIVE_SECONDS,
        "timeout_graceful_shutdown": max(1, round(grace_s)) + _ENDING_SECONDS,
    }
    return DrainingServer(uvicorn.Config(app, **settings), engine, grace_s)


def limit_stalls(listener: socket.socket, seconds: float = STALLED_SECONDS) -> None:
    """Let the kernel drop connections whose peer acknowledges nothing for too long, where it can (Linux)."""
    if hasattr(socket, "TCP_USER_TIMEOUT") and listener.family != socket.AF_UNIX:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))


def run_server(app: ASGIApp, engine: Engine, listener: socket.socket, grace_s: float) -> bool:
    """Serve until SIGTERM, SIGINT or a failure of the engine. Returns whether it started and did not fail. Call it in
    the main thread."""
    server = make_server(app, engine, grace_s)
    limit_stalls(listener)
    # Modules, tokenizer and routes are 200,000 objects that the collector would scan again and again, for 0.1 s in
    # which all streams wait.
    gc.freeze()

    def stop(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again when it is done; the default handler would end the process with the signal's
        # status before the code after the server has run.
        signal.signal(number, stop)
    server.run(sockets=[listener])
    return server.started and engine.failure is None
