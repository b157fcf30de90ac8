"""A file that is uploaded as multipart/form-data: read as it comes, checked and sealed, never written in the clear.

Django's parser reads in a thread; the connection hands it one message after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from datetime import timedelta
from functools import partial
from typing import Any, cast
from uuid import UUID

from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadhandler import FileUploadHandler
from django.db import connections
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.utils.http import parse_header_parameters

from marketplace.accounts.errors import InvalidInput, Refusal
from marketplace.gateway.background.database import in_thread
from marketplace.gateway.errors import require_fields
from marketplace.gateway.http import Receive, Scope, headers_of
from marketplace.gateway.shares import UPLOAD_SECONDS, UPLOADS
from marketplace.jobs.files import KEPT, Upload, announce
from marketplace.jobs.lines import MAX_BYTES
from marketplace.jobs.models import File
from protocol.errors import ClientGone
from protocol.shares import Threads

PIECE_SECONDS = 30.0
PIECE_BYTES = 2**16  # that come in PIECE_SECONDS, or the rest: whoever sends less keeps a place from others
_ENVELOPE_BYTES = 2**16  # of a request beside its file
_TAIL_BYTES = 2**10  # of the end of a form, which is longer than a boundary
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_SHORTEST, _LONGEST = timedelta(hours=1), KEPT

_uploads = Threads(UPLOADS)


async def take_upload(scope: Scope, receive: Receive, organization_id: UUID) -> File:
    """Store the file of a request. Raises Refusal: 400, 408, 409, 413, 415, 429, 503; and ClientGone."""
    headers = headers_of(scope)
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    if not content_type.startswith("multipart/form-data"):
        raise Refusal("Send the file as multipart/form-data.", code="unsupported_media_type", status=415)
    length = headers.get(b"content-length", b"").decode("latin-1")
    size = int(length) if length.isdigit() and len(length) < 16 else None
    work = partial(_parse, _Body(receive, asyncio.get_running_loop()), content_type, size, organization_id)
    return await in_thread(organization_id, work, threads=_uploads)


class _Body:
    """The request's body for a thread."""

    def __init__(self, receive: Receive, loop: asyncio.AbstractEventLoop) -> None:
        self._receive, self._loop = receive, loop
        self._waiting, self._more, self._seen = b"", True, 0
        self._tail = b""
        self._until = time.monotonic() + UPLOAD_SECONDS
        self._piece, self._piece_until = 0, time.monotonic() + PIECE_SECONDS

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, none at the end. Raises Refusal 408 and 413, and ClientGone."""
        while not self._waiting and self._more:
            message = self._next()
            if message["type"] == "http.disconnect":
                raise ClientGone
            self._waiting, self._more = message.get("body", b""), message.get("more_body", False)
            self._seen += len(self._waiting)
            if self._seen - self._piece >= PIECE_BYTES:
                self._piece, self._piece_until = self._seen, time.monotonic() + PIECE_SECONDS
            if self._seen > MAX_BYTES + _ENVELOPE_BYTES:
                raise Refusal(f"A file has at most {MAX_BYTES // 2**20} MiB.", code="file_too_large", status=413)
        piece, self._waiting = self._waiting[:size], self._waiting[size:]
        self._tail = (self._tail + piece)[-_TAIL_BYTES:]
        return piece

    def ended(self, content_type: str) -> bool:
        """Read the rest; return whether it ends with the boundary that ends a form: without, it is a part of one."""
        while self.read(_TAIL_BYTES):
            pass
        _, options = parse_header_parameters(content_type)
        return self._tail.rstrip().endswith(b"--" + options.get("boundary", "").encode() + b"--")

    def _next(self) -> Any:
        seconds = min(self._piece_until, self._until) - time.monotonic()
        try:
            return asyncio.run_coroutine_threadsafe(_in_time(self._receive(), seconds), self._loop).result()
        except TimeoutError:
            raise Refusal("The file did not arrive in time.", code="body_timeout", status=408) from None


class _Sealing(FileUploadHandler):
    """Takes the one file of a form."""

    chunk_size = 2**16

    def __init__(self, upload: Upload) -> None:
        super().__init__()
        self.upload = upload
        self.name = ""

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        if self.name or self.field_name != "file":
            raise InvalidInput("Send one file, in the field `file`.", field="file")
        self.name = self.file_name or "file.jsonl"

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self.upload.feed(raw_data)

    def file_complete(self, file_size: int) -> None:
        return None


def _parse(body: _Body, content_type: str, size: int | None, organization_id: UUID) -> File:
    upload = Upload(announce(organization_id=organization_id, size=size), after_chunk=connections.close_all)
    try:
        return _stored(body, content_type, size, upload)
    except BaseException:
        upload.drop()
        raise


def _stored(body: _Body, content_type: str, size: int | None, upload: Upload) -> File:
    handler = _Sealing(upload)
    meta = {"CONTENT_TYPE": content_type, "CONTENT_LENGTH": str(MAX_BYTES if size is None else size)}
    try:
        fields, _ = MultiPartParser(meta, cast(Any, body), [handler], "utf-8").parse()
    except (MultiPartParserError, SuspiciousOperation):
        raise InvalidInput("The form cannot be read.", code="invalid_form") from None
    if not body.ended(content_type):
        raise InvalidInput(
            "The form ends before its last boundary: a part of the file is missing.", code="invalid_form"
        )
    require_fields("files", {name.partition("[")[0]: values for name, values in fields.lists()})
    require_fields(_FIELDS, dict(fields.lists()))
    if fields.get("expires_after[anchor]", "created_at") != "created_at":
        raise InvalidInput("`expires_after[anchor]` must be created_at.", field="expires_after")
    if not handler.name:
        raise InvalidInput("There is no file.", field="file")
    if fields.get("purpose") != File.Purpose.BATCH:
        raise InvalidInput("`purpose` must be batch.", field="purpose")
    return upload.finish(name=handler.name, kept=_kept(fields.get("expires_after[seconds]")))


def _kept(seconds: str | None) -> timedelta:
    if seconds is None:
        return KEPT
    kept = timedelta(seconds=int(seconds)) if seconds.isascii() and seconds.isdigit() and len(seconds) < 9 else None
    if kept is None or not _SHORTEST <= kept <= _LONGEST:
        raise InvalidInput("`expires_after[seconds]` must be from 3,600 to 2,592,000.", field="expires_after")
    return kept


async def _in_time(message: Awaitable[Any], seconds: float) -> Any:
    async with asyncio.timeout(max(seconds, 0)):
        return await message
