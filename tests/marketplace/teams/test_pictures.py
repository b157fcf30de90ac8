"""Pictures that organizations upload, among them those that only say how large they are."""

from __future__ import annotations

import struct
import zlib

import pytest

from marketplace.accounts.errors import InvalidInput
from marketplace.teams.pictures import redraw_square, redraw_whole


def png_of(side: int) -> bytes:
    """Return a PNG of a few bytes that claims `side` by `side` pixels and holds none."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


# Over the limit; over that of which Pillow warns; over that at which Pillow raises an error of its own.
@pytest.mark.parametrize("side", [5_000, 10_000, 40_000])
def test_a_picture_that_claims_to_be_huge_is_refused_before_it_is_unpacked(side: int) -> None:
    for make in (redraw_square, redraw_whole):
        with pytest.raises(InvalidInput) as refused:
            make(png_of(side))
        assert refused.value.field == "logo"
