"""Ranged downloads of sealed packages, by signed URLs.

They stream under ASGI, too: a sync iterator there would be read into memory whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlencode

from asgiref.sync import sync_to_async
from django.core import signing
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from marketplace.catalog.package_folder import FolderStore
from marketplace.catalog.package_stores import package_store
from marketplace.vault.errors import GrantRefused, UnknownPackage
from protocol.packages import PACKAGE_PATH, PACKAGE_URL_SECONDS

CHUNK_BYTES = 1 << 20
_grants = signing.TimestampSigner(salt="marketplace.vault.downloads.package")
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


def package_url(digest: str) -> str:
    """Return where a replica may fetch one package within `PACKAGE_URL_SECONDS`: at the blob store, or here.

    A URL of this platform is relative to the internal API, because each replica reaches the API by its own way.
    """
    url = package_store().signed_url(digest, seconds=PACKAGE_URL_SECONDS)
    return url or f"{PACKAGE_PATH.format(digest=digest)}?{urlencode({'grant': _grants.sign(digest)})}"


def require_grant(digest: str, grant: str) -> None:
    """Raise GrantRefused unless `grant` was signed for this package less than `PACKAGE_URL_SECONDS` ago."""
    try:
        granted = _grants.unsign(grant, max_age=PACKAGE_URL_SECONDS)
    except signing.BadSignature:
        raise GrantRefused("this URL is not, or no longer, one of a package: ask for another") from None
    if granted != digest:
        raise GrantRefused("this URL is of another package")


def package_response(request: HttpRequest, digest: str) -> HttpResponseBase:
    """Return the package's file in the platform's folder, or the single range of it that is asked for.

    A range is answered with 206, or with 416 past the end. A `Range` that is not one plain range is ignored, as
    RFC 9110 allows. Raises UnknownPackage if there is no such file.
    """
    store = package_store()
    if not isinstance(store, FolderStore):
        raise UnknownPackage("the platform's packages are in a blob store")
    try:
        descriptor = os.open(store.path(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        raise UnknownPackage("the platform has no file of this package") from None
    size = os.fstat(descriptor).st_size
    first = 0
    last = size - 1
    status = 200
    if asked := _RANGE.fullmatch(request.headers.get("Range", "")):
        first = int(asked[1])
        last = min(int(asked[2] or size - 1), size - 1)
        status = 206
        if first > last:
            os.close(descriptor)
            return HttpResponse(status=416, headers={"Content-Range": f"bytes */{size}"})
    chunks = _Chunks(descriptor, first, last + 1 - first)
    content = chunks.stream() if isinstance(request, ASGIRequest) else chunks.read()
    response = _PackageResponse(chunks, content, status=status, content_type="application/octet-stream")
    response["Content-Length"] = str(last + 1 - first)
    response["Accept-Ranges"] = "bytes"
    if status == 206:
        response["Content-Range"] = f"bytes {first}-{last}/{size}"
    return response


class _PackageResponse(StreamingHttpResponse):
    def __init__(self, chunks: _Chunks, content: Iterator[bytes] | AsyncIterator[bytes], **arguments: Any) -> None:
        super().__init__(content, **arguments)
        self._chunks = chunks

    def close(self) -> None:
        """Runs at the end, also when the client goes away."""
        super().close()
        self._chunks.close()


class _Chunks:
    """`count` bytes of a file from `offset`; owns the descriptor."""

    def __init__(self, descriptor: int, offset: int, count: int) -> None:
        self._descriptor = descriptor
        self._offset = offset
        self._left = count

    def _next(self) -> bytes:
        chunk = os.pread(self._descriptor, min(CHUNK_BYTES, self._left), self._offset)
        self._offset += len(chunk)
        self._left -= len(chunk)
        return chunk

    def read(self) -> Iterator[bytes]:
        while self._left and (chunk := self._next()):
            yield chunk

    async def stream(self) -> AsyncIterator[bytes]:
        read = sync_to_async(self._next, thread_sensitive=False)
        while self._left and (chunk := await read()):
            yield chunk

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
