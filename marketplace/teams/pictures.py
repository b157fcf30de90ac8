"""A picture that somebody uploads becomes one that the platform drew: small, in one format, nothing of the file left.

Pure but for Pillow, which a process loads at its first picture. Formats with scripts or references (SVG) are not read.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from marketplace.accounts.errors import InvalidInput, TooLarge

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_FILE_BYTES = 2**20
MAX_SIDE = 2_048  # pixels of the file that is sent: 16 MiB once it is unpacked, checked before that
SIDE = 256  # pixels of what is kept, at most
FORMATS = ("PNG", "JPEG", "WEBP")
LIMITS = f"PNG, JPEG or WebP, at most {MAX_FILE_BYTES // 2**20} MiB and {MAX_SIDE:,} pixels a side."
CONTENT_TYPE = "image/webp"  # of `redraw_square`


def redraw_square(content: bytes) -> bytes:
    """Return the middle of the picture as a WebP of 256 by 256 pixels. Raises InvalidInput, TooLarge."""
    pixels = _pixels_of(content)
    from PIL import Image, ImageOps

    target = io.BytesIO()
    ImageOps.fit(pixels, (SIDE, SIDE), Image.Resampling.LANCZOS).save(target, "WEBP", quality=85, method=4)
    return target.getvalue()


def redraw_whole(content: bytes) -> bytes:
    """Return the whole picture as a PNG of at most 256 pixels a side. Raises InvalidInput, TooLarge."""
    pixels = _pixels_of(content)
    pixels.thumbnail((SIDE, SIDE))
    target = io.BytesIO()
    pixels.save(target, "PNG", optimize=True)
    return target.getvalue()


def _pixels_of(content: bytes) -> Picture:
    """Return the pixels of a file, upright, without the profile, comment or position that came with them.

    Raises TooLarge for a file over the limit, InvalidInput for more pixels (before any is unpacked), for another
    format and for a broken file.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if len(content) > MAX_FILE_BYTES:
        raise TooLarge(f"a logo has at most {MAX_FILE_BYTES // 2**20} MiB", field="logo")
    too_many = InvalidInput(f"a logo has at most {MAX_SIDE:,} pixels a side", field="logo")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            if max(opened.size) > MAX_SIDE:
                raise too_many
            opened.draft("RGB", (SIDE, SIDE))
            upright = ImageOps.exif_transpose(opened).convert("RGBA")
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise too_many from None
    except InvalidInput:
        raise
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError):
        raise InvalidInput(
            "is no PNG, JPEG or WebP picture that can be read", code="not_a_picture", field="logo"
        ) from None
    return Image.frombytes("RGBA", upright.size, upright.tobytes())
