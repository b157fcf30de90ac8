"""The resumable upload: chunks grow on a fast line; after a failure the upload continues where the platform says."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from creator_cli.control_api import ControlApi
from creator_cli.errors import ApiError, CliError, NetworkError
from creator_cli.http_client import RETRY_WAITS

MAX_CHUNK = 8 << 20  # bytes in one request: the platform's limit
MIN_CHUNK = 256 << 10
FIRST_CHUNK = 1 << 20
_SLICE = 64 << 10
_FAST_SECONDS = 2.0


def upload_package(api: ControlApi, address: str, package: Path, size: int, progress: Callable[[int], None]) -> None:
    """Send the bytes that the platform does not have yet to an upload's address below /api/v1.

    `progress` is called with the number of bytes arrived.

    A temporary failure (a lost connection, a 5xx, a chunk at the wrong offset) is retried from the offset that the
    platform names, until there are more failures in a row than retry waits. Raises ApiError, NetworkError, CliError.
    """
    chunk = FIRST_CHUNK
    failures = 0
    offset = api.upload_offset(address)
    with package.open("rb") as file:
        while offset < size:
            progress(offset)
            length = min(chunk, size - offset)
            started = time.monotonic()
            try:
                reached = api.upload_chunk(
                    address,
                    offset=offset,
                    length=length,
                    body=lambda: _slices(file, offset, length, progress),  # noqa: B023
                )
            except (ApiError, NetworkError) as error:
                if failures == len(RETRY_WAITS) or not _is_temporary(error):
                    raise
                time.sleep(RETRY_WAITS[failures] * random.uniform(0.75, 1.25))
                failures += 1
                chunk = max(MIN_CHUNK, chunk // 2)
                # Ask again: part of the chunk may have arrived.
                offset = api.upload_offset(address)
                continue
            if not offset < reached <= size:
                raise CliError(
                    f"the platform reports byte {reached} of an upload of {size} bytes", hint="run the command again"
                )
            failures = 0
            offset = reached
            if time.monotonic() - started < _FAST_SECONDS:
                chunk = min(MAX_CHUNK, chunk * 2)
    progress(size)


def _is_temporary(error: ApiError | NetworkError) -> bool:
    if isinstance(error, NetworkError):
        return True
    return error.status in (500, 502, 503, 504) or (error.status == 409 and error.offset is not None)


def _slices(file: BinaryIO, offset: int, length: int, progress: Callable[[int], None]) -> Iterator[bytes]:
    file.seek(offset)
    end = offset + length
    while offset < end:
        data = file.read(min(_SLICE, end - offset))
        if not data:
            raise CliError("the sealed package became shorter while it was sent", hint="run the command again")
        yield data
        offset += len(data)
        progress(offset)
