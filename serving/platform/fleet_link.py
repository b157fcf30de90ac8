"""This replica's fleet link: a thread that tells the platform what is new, and carries out what it is told."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from protocol.errors import ProtocolError
from protocol.fleet import MAX_NEWS, MAX_RETURNED, VIEW_SECONDS, FleetNews, decode_news, encode_frame
from serving.platform.errors import PlatformError, ProtocolViolation, SessionRefused
from serving.platform.fleet_stream import FleetStream, NoFleetLinks
from serving.platform.fleet_views import Snapshot, Views
from serving.platform.leases import LeaseTable

log = logging.getLogger(__name__)

# A link by which the session was renewed this lately does what heartbeats do.
FRESH_SECONDS = 4.0
AGAIN_SECONDS = 30.0  # until a platform without links is asked again
MAX_BACKOFF_SECONDS = 2.0
_MOST_UNANSWERED = 256  # views


@dataclass(frozen=True, slots=True)
class Acts:
    """Acts and figures that the link calls for. All are called in its thread.

    snapshot: this replica now; drop: refuse, abort and zero adapters, whether they are here or not
    prefetch: load adapters where they displace only what is worth less; adopt: use these ticket keys
    """

    snapshot: Callable[[], Snapshot]
    drop: Callable[[Sequence[str]], Sequence[Future[int]]]
    prefetch: Callable[[Sequence[str]], None]
    adopt: Callable[[dict[str, str]], None] = lambda keys: None


@dataclass(frozen=True, slots=True)
class _Said:
    """A view that is not in the books yet. asked_at: on the clock of the leases, before it was sent"""

    seq: int
    asked_at: float
    returned: tuple[str, ...]
    dropped: tuple[str, ...]


class FleetLink:
    """The link of this boot. `start` once, `use` a session whenever there is a new one, `close` at the end."""

    def __init__(self, platform_url: str, leases: LeaseTable, acts: Acts) -> None:
        self._platform_url, self._leases, self._acts = platform_url, leases, acts
        self._session_token = ""
        self._renewed_at = float("-inf")  # `time.monotonic`
        self._refused = threading.Event()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._dropping: dict[str, Future[int]] = {}
        self._thread = threading.Thread(target=self._run, name="fleet-link", daemon=True)

    def start(self) -> None:
        """Start the thread, which waits for a session."""
        self._thread.start()

    def use(self, session_token: str) -> None:
        """Link with this session from here on."""
        self._refused.clear()
        self._session_token = session_token
        self._wake.set()

    @property
    def fresh(self) -> bool:
        """Return whether the session was renewed over the link lately: heartbeats are not needed."""
        return time.monotonic() - self._renewed_at < FRESH_SECONDS

    @property
    def refused(self) -> bool:
        """Return whether the platform knows the session no more."""
        return self._refused.is_set()

    def close(self) -> None:
        """Close the link, by which the platform knows that this boot left."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        backoff = 0.1
        while not self._stop.is_set():
            if not self._session_token or self._refused.is_set():
                self._wake.wait(1.0)
                self._wake.clear()
                continue
            began, token = time.monotonic(), self._session_token
            try:
                self._link(token)
                pause = 0.0
            except SessionRefused:
                if token == self._session_token:
                    self._refused.set()
                pause = 0.0
            except NoFleetLinks as error:
                log.info("no fleet link (%s): heartbeats go on", error)
                pause = AGAIN_SECONDS
            except PlatformError as error:
                log.info("the fleet link: %s", error)
                backoff = (
                    0.1 if time.monotonic() - began > MAX_BACKOFF_SECONDS else min(backoff * 2, MAX_BACKOFF_SECONDS)
                )
                # Delays differ, so that not all replicas come back to a restarted platform at once.
                pause = backoff * random.uniform(0.5, 1.5)
            except Exception:
                log.exception("the fleet link failed")
                pause = 1.0
            self._stop.wait(pause)

    def _link(self, token: str) -> None:
        """Hold one link until it ends or there is another session."""
        stream, views, said = FleetStream(self._platform_url, token), Views(), deque[_Said](maxlen=_MOST_UNANSWERED)
        try:
            while not self._stop.is_set() and token == self._session_token:
                turn = time.monotonic()
                self._say(stream, views, said, turn)
                while (left := turn + VIEW_SECONDS - time.monotonic()) > 0:
                    body = stream.receive(left)
                    if body is not None:
                        self._hear(body, said)
        finally:
            stream.close()

    def _say(self, stream: FleetStream, views: Views, said: deque[_Said], now: float) -> None:
        asked_at = self._leases.now()
        told = {one for before in said for one in before.returned}
        returned = tuple(one for one in self._leases.returned(MAX_RETURNED) if one not in told)
        dropped = tuple(digest for digest, done in self._dropping.items() if done.done())[:MAX_NEWS]
        view = views.next(self._acts.snapshot(), now, returned=returned, dropped=dropped)
        if view is None:
            return
        stream.send(encode_frame(view))
        for digest in dropped:
            del self._dropping[digest]
        said.append(_Said(view.seq, asked_at, returned, dropped))

    def _hear(self, body: bytes, said: deque[_Said]) -> None:
        try:
            news = decode_news(body)
        except ProtocolError as error:
            raise ProtocolViolation(f"news of the platform: {error}") from None
        self._carry_out(news)
        while said and said[0].seq <= news.renewed:
            one = said.popleft()
            self._leases.confirm_returned(one.returned)
            self._leases.renew(asked_at=one.asked_at)
            self._renewed_at = time.monotonic()

    def _carry_out(self, news: FleetNews) -> None:
        """Do what ends something first."""
        if news.revoked:
            self._leases.revoke(news.revoked)
            self._dropping.update(zip(news.revoked, self._acts.drop(news.revoked), strict=True))
        if news.ended:
            self._leases.end(news.ended)
        if news.ticket_keys is not None:
            self._acts.adopt(news.ticket_keys)
        if news.prefetch:
            self._acts.prefetch(news.prefetch)
