"""Bodies that a client compressed: read up to the limit of others, so that a small body cannot become a large one."""

from __future__ import annotations

import zlib

from protocol.errors import BodyTooLarge, BrokenEncoding, UnknownEncoding

ACCEPTED = "gzip"  # what an answer 415 tells a client, in Accept-Encoding
_GZIP = 16 + zlib.MAX_WBITS


def decoded(body: bytes, encoding: str, *, limit: int) -> bytes:
    """Return a body without its Content-Encoding, which may be empty, identity or gzip.

    Raises UnknownEncoding, BrokenEncoding, and BodyTooLarge for more than `limit` bytes.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in ("gzip", "x-gzip"):
        raise UnknownEncoding(f"the Content-Encoding must be {ACCEPTED}")
    out, rest = bytearray(), body
    while rest:  # a body may be several gzip members
        member = zlib.decompressobj(_GZIP)
        try:
            out += member.decompress(rest, limit + 1 - len(out))
        except zlib.error:
            raise BrokenEncoding("the body is not gzip") from None
        if len(out) > limit:
            raise BodyTooLarge(limit)
        if not member.eof:
            raise BrokenEncoding("the body ends inside its gzip data")
        rest = member.unused_data
    return bytes(out)
