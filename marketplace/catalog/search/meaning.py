"""The encoder of this process: loaded beside other work, and never so busy that searches wait for it.

A query that comes while others are being encoded waits a moment for its turn. Where too many wait, or the encoder is
still loading or missing, the search does without meaning.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from django.conf import settings

from marketplace.catalog.search import encoder
from marketplace.catalog.search.vectors import literal

log = logging.getLogger(__name__)
MAX_WAITING = 4  # queries: the one that is encoded and those behind it
TURN_SECONDS = 0.05
MAX_REMEMBERED = 1_024  # queries; 4 MB


class Encodes(Protocol):
    """The part of an encoder that this module needs."""

    def encode(self, text: str) -> list[float]: ...


class Meaning:
    """Vectors of queries. `load` returns the encoder or raises EncoderMissing; it is called once."""

    def __init__(self, load: Callable[[], Encodes]) -> None:
        self._load = load
        self._encoder: Encodes | None = None
        self._why_not = "it is being loaded"
        self._loading: threading.Thread | None = None
        self._start = threading.Lock()
        self._seats = threading.BoundedSemaphore(MAX_WAITING)
        self._turn = threading.Lock()
        self._remembered: OrderedDict[str, str] = OrderedDict()

    @property
    def why_not(self) -> str:
        """Return why there is no encoder; "" where there is one."""
        return self._why_not

    def warm_up(self, *, wait: bool = False) -> None:
        """Load the encoder in a thread of its own, once; with `wait`, return when that has ended."""
        with self._start:
            if self._loading is None:
                self._loading = threading.Thread(target=self._load_once, name="search-encoder", daemon=True)
                self._loading.start()
        if wait:
            self._loading.join()

    def vector_of(self, text: str) -> str | None:
        """Return the vector of a query as pgvector reads it, or None: the search does without."""
        self.warm_up()
        if self._encoder is None:
            return None
        key = text.lower()
        if (known := self._remembered.get(key)) is not None:
            return known
        if not self._seats.acquire(blocking=False):
            return None
        try:
            if not self._turn.acquire(timeout=TURN_SECONDS):
                return None
            try:
                found = literal(self._encoder.encode(key))
                self._remembered[key] = found
                while len(self._remembered) > MAX_REMEMBERED:
                    self._remembered.popitem(last=False)
                return found
            finally:
                self._turn.release()
        finally:
            self._seats.release()

    def _load_once(self) -> None:
        try:
            self._encoder = self._load()
            self._encoder.encode("warm")
            self._why_not = ""
        except encoder.EncoderMissing as missing:
            self._why_not = str(missing)
            log.warning("search finds words and spellings, not meaning: %s", missing)
        except Exception:  # a broken installation of an optional part stops nothing else
            self._encoder = None
            self._why_not = "it could not be loaded; the log says why"
            log.exception("search finds words and spellings, not meaning: the encoder could not be loaded")


meaning = Meaning(lambda: encoder.load(settings.ENV.search_encoder))
