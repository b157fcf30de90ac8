"""A replica that another program hosts: built and served as by `python -m serving`, on its own port and thread."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from protocol.names import FleetName
from protocol.replicas import HEARTBEAT_SECONDS
from sealed_weights import base_fingerprint
from serving.errors import ConfigError
from serving.fleet.load import load_of
from serving.fleet.settings import PoolSettings
from serving.fleet.slots import Slot, take_slot
from serving.http.server import limit_stalls, make_server
from serving.platform.launch import PlatformReplica, build_replica

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_NOTICE_SECONDS = HEARTBEAT_SECONDS + 1.5
_CLOSING_SECONDS = 10.0  # for the last events of streams that the grace was too short for, and the journal


class NotServing(Exception):
    """The replica stopped, or did not begin, to serve."""


class HostedReplica:
    """One replica in this process. It holds a slot of its node from `start` until `drain` has ended."""

    def __init__(self, name: FleetName, url: str, replica: PlatformReplica, settings: PoolSettings, slot: Slot) -> None:
        """Take over what `start` made; use that."""
        self.name, self.url = name, url
        self._replica, self._settings = replica, settings
        self._slot: Slot | None = slot
        self._server = make_server(replica.app, replica.engine, settings.drain_seconds)
        self._draining = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="http-server", daemon=True)

    @classmethod
    def start(cls, settings: PoolSettings, address: str) -> HostedReplica:
        """Take a slot, load the model, serve at `address`, and return once the platform knows the replica.

        Raises ConfigError and what `build_replica` raises; NotServing if it takes longer than `start_seconds`.
        """
        deadline = time.monotonic() + settings.start_seconds
        config = settings.serving_config(address)
        slot = take_slot(settings.state, settings.pool)
        try:
            listener = _listen(address, *settings.ports)
            url = f"http://{_bracketed(address)}:{listener.getsockname()[1]}"
            platform = settings.platform_config(slot.name, url)
            with ThreadPoolExecutor(1) as hashing:  # while the rest of the program is imported
                replica = build_replica(config, platform, hashing.submit(base_fingerprint, Path(settings.model)))
            hosted = cls(slot.name, url, replica, settings, slot)
            hosted._begin(listener, deadline)
        except BaseException:
            slot.release(settled=False)
            raise
        return hosted

    def _begin(self, listener: socket.socket, deadline: float) -> None:
        limit_stalls(listener)
        self._listener = listener
        gc.freeze()  # as in `run_server`
        self._replica.start()
        self._thread.start()
        while not (self._replica.engine.accepting and self._replica.link.registered):
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self._server.should_exit = True
                self._thread.join(_CLOSING_SECONDS)
                self._replica.close()
                raise NotServing(f"{self.name} is not registered and warm after {self._settings.start_seconds:.0f} s")
            time.sleep(_LOOK_SECONDS)
        log.info("%s serves at %s", self.name, self.url)

    def _serve(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._listener]))
        except Exception:
            log.exception("the server of %s failed", self.name)

    def check(self) -> None:
        """Raise NotServing when nothing but another process can help.

        A platform that cannot be reached, or a full disk, is no such thing: the next process would have them, too.
        """
        if not self._replica.engine.alive:
            raise NotServing(f"{self.name}: the engine has stopped")
        if not self._thread.is_alive():
            raise NotServing(f"{self.name}: the server has stopped")

    def load(self) -> dict[str, float]:
        """Return the replica's load as `figures.Sample` reads it."""
        return load_of(self._replica.engine)

    def drain(self) -> None:
        """Refuse new predictions, finish those that run, say good-bye, give up the slot; then the process may end.

        Predictions that outlast `drain_seconds` end with an error event and a receipt. Idempotent; blocks.
        """
        with self._draining:
            if self._slot is None:
                return
            log.info("%s drains", self.name)
            self._replica.engine.drain()
            self._replica.hand_over()
            # Until a heartbeat has told it and gateways have read it, calls still come: each gets its refusal, and goes
            # to the next replica. A server that closed now would cut them off.
            time.sleep(_NOTICE_SECONDS)
            self._server.handle_exit(signal.SIGTERM, None)
            self._thread.join(self._settings.drain_seconds + _CLOSING_SECONDS)
            ended = not self._thread.is_alive()
            self._replica.close()
            self._slot.release(settled=ended)
            self._slot = None
            log.info("%s has ended", self.name)


def _listen(address: str, first: int, last: int) -> socket.socket:
    """Listen on the first free port of these. Raises ConfigError when all are taken, or the address is not ours."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in range(first, last + 1):
        try:
            return socket.create_server((address, port), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == last:
                raise ConfigError(f"address {address}, port {port}: {error.strerror}") from None
    raise ConfigError("ports: the first and the last one")


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
