"""Lines of a batch's input: read piece by piece as they arrive, checked one by one, named by their numbers alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from marketplace.jobs.endpoints import BATCH_TIER, ENDPOINTS
from marketplace.jobs.errors import BadLines, FileTooLarge
from protocol.encoding import foreign_beginning
from protocol.errors import RequestRefused
from protocol.request_fields import check_fields

MAX_BYTES = 50 * 2**20  # of one file
MAX_LINES = 20_000
MAX_LINE_BYTES = 2**20  # as a request of /v1
MAX_CUSTOM_ID = 200
MAX_MODEL_NAME = 200  # characters; those of models here are shorter
MOST_NAMED = 20  # bad lines that a refusal names

_FIELDS = ("custom_id", "method", "url", "body")
_TOO_LONG = f"longer than {MAX_LINE_BYTES // 2**10:,} KiB"


@dataclass(frozen=True, slots=True, repr=False)
class Line:
    """One request. `body` are the bytes that are sent."""

    number: int
    custom_id: str
    url: str
    model: str
    body: bytes


class LineError(ValueError):
    """A line breaks a rule, which the text says without quoting the line."""


def parse_line(number: int, raw: bytes) -> Line:
    """Return the request of a line. Raises LineError."""
    if len(raw) > MAX_LINE_BYTES:
        raise LineError(_TOO_LONG)
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise LineError(foreign_beginning(raw) or "no JSON") from None
    if not isinstance(data, dict):
        raise LineError("no JSON object")
    try:
        check_fields(_FIELDS, data)
    except RequestRefused as error:
        raise LineError(error.message.rstrip(".")) from None
    custom_id: Any = data.get("custom_id")
    body: Any = data.get("body")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID:
        raise LineError(f"`custom_id` must be 1 to {MAX_CUSTOM_ID} characters")
    if data.get("method") != "POST":
        raise LineError("`method` must be POST")
    url = data.get("url")
    if not isinstance(url, str) or url not in ENDPOINTS:
        raise LineError(f"`url` must be one of {', '.join(ENDPOINTS)}")
    model = check_body(url, body)
    return Line(number, custom_id, url, model, body_bytes(body | {"service_tier": BATCH_TIER}))


def check_body(endpoint: str, body: Any) -> str:
    """Return the model that a body asks, which may be one that does not exist.

    Raises LineError for a body that is refused in any case.
    """
    if not isinstance(body, dict):
        raise LineError("`body` must be an object")
    name = body.get("model")
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_MODEL_NAME:
        raise LineError("`body.model` must be organization/model or organization/model@version")
    if not body.get(ENDPOINTS[endpoint]):
        raise LineError(f"`body.{ENDPOINTS[endpoint]}` is missing")
    if body.get("stream"):
        raise LineError("`body.stream` is not possible here")
    return name


def body_bytes(body: dict[str, Any]) -> bytes:
    """Return a body as it is sent. Raises LineError for one that no JSON of /v1 can be."""
    try:
        return orjson.dumps(body)
    except TypeError:
        raise LineError("`body` is nested too deeply, or a number in it is too large") from None


class LineReader:
    """Takes a file in pieces and checks each line. Call `feed` for each piece, then `end` once."""

    def __init__(self) -> None:
        """Start before the first byte."""
        self.bytes = 0
        self.lines = 0  # requests
        self.endpoint = ""
        self._number = 0
        self._rest = bytearray()
        self._skipping = False  # in a line that is too long
        self._custom_ids: set[str] = set()
        self._bad: list[tuple[int, str]] = []
        self._bad_count = 0

    def feed(self, piece: bytes) -> bytes:
        """Return the bytes of the lines that this piece completes. Raises FileTooLarge."""
        self.bytes += len(piece)
        if self.bytes > MAX_BYTES:
            raise FileTooLarge(f"a file has at most {MAX_BYTES // 2**20} MiB", field="file")
        self._rest += piece
        whole, newline, rest = bytes(self._rest).rpartition(b"\n")
        self._rest = bytearray(rest)
        if newline:
            for line in whole.split(b"\n"):
                self._take(line)
        if len(self._rest) > MAX_LINE_BYTES and not self._skipping:
            self._skipping = True  # its rest is dropped as it comes
            self._note(self._number + 1, _TOO_LONG)
        if self._skipping:
            self._rest.clear()
        return whole + newline if self._bad_count == 0 else b""

    def end(self) -> bytes:
        """Return the last line, where no line feed ends it. Raises BadLines for the whole file, and FileTooLarge."""
        last = bytes(self._rest)
        if last or self._skipping:
            self._take(last)
        if self._bad:
            raise BadLines(self._bad, self._bad_count)
        if not self.lines:
            raise BadLines([(1, "there is no request")], 1)
        return last

    def _take(self, raw: bytes) -> None:
        self._number += 1
        if self._skipping:
            self._skipping = False
            return
        if not raw.strip():
            return
        self.lines += 1
        if self.lines > MAX_LINES:
            raise FileTooLarge(f"a file has at most {MAX_LINES:,} lines", field="file")
        try:
            line = parse_line(self._number, raw)
            if line.custom_id in self._custom_ids:
                raise LineError("its `custom_id` is that of an earlier line")
            self._custom_ids.add(line.custom_id)
            self.endpoint = self.endpoint or line.url
            if line.url != self.endpoint:
                raise LineError("its `url` is not that of the first line")
        except LineError as error:
            self._note(self._number, str(error))

    def _note(self, number: int, rule: str) -> None:
        self._bad_count += 1
        if len(self._bad) < MOST_NAMED:
            self._bad.append((number, rule))


def numbered(pieces: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line of a file whose pieces end with lines; empty ones are left out."""
    number = 0
    for piece in pieces:
        lines = piece.split(b"\n")
        for raw in lines if lines[-1] else lines[:-1]:
            number += 1
            if raw.strip():
                yield number, raw
