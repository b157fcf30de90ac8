"""A compressed body is read up to the limit of what it becomes."""

from __future__ import annotations

import gzip
import zlib

import pytest

from protocol.content_encoding import decoded
from protocol.errors import BodyTooLarge, BrokenEncoding, UnknownEncoding

TEXT = b'{"prompt": "' + b"x" * 5000 + b'"}'


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", " x-gzip "])
def test_gzip_is_read(encoding: str) -> None:
    assert decoded(gzip.compress(TEXT), encoding, limit=len(TEXT)) == TEXT
    assert decoded(gzip.compress(TEXT) + gzip.compress(b"more"), encoding, limit=6000) == TEXT + b"more"


@pytest.mark.parametrize("encoding", ["", "identity", "Identity"])
def test_a_plain_body_is_the_same_object(encoding: str) -> None:
    assert decoded(TEXT, encoding, limit=0) is TEXT


@pytest.mark.parametrize("encoding", ["br", "zstd", "deflate", "gzip, gzip", "compress", "*"])
def test_other_encodings_are_named_as_unknown(encoding: str) -> None:
    with pytest.raises(UnknownEncoding, match="gzip"):
        decoded(gzip.compress(TEXT), encoding, limit=10_000)


def test_a_body_that_is_not_gzip_or_ends_early_is_broken() -> None:
    whole = gzip.compress(TEXT)
    for body in (b"{}", whole[:-9], whole[:5], zlib.compress(TEXT), whole + b"x"):
        with pytest.raises(BrokenEncoding):
            decoded(body, "gzip", limit=10_000)


def test_a_small_body_does_not_become_a_large_one() -> None:
    bomb = gzip.compress(b"0" * 50_000_000)
    assert len(bomb) < 100_000
    for body in (bomb, gzip.compress(b"0" * 600) * 2, gzip.compress(b"") * 3 + bomb):
        with pytest.raises(BodyTooLarge):
            decoded(body, "gzip", limit=1000)
    assert decoded(gzip.compress(b"0" * 1000), "gzip", limit=1000) == b"0" * 1000
