"""A picture that somebody uploads becomes one that the platform drew: fixed size, one format, nothing of the file left.

Pure but for Pillow. Formats with scripts or references (SVG) are not read at all.
"""

from __future__ import annotations

import io
import warnings

from marketplace.accounts.errors import InvalidInput

MAX_FILE_BYTES = 1 * 2**20
MAX_SIDE = 4096  # pixels, checked before the picture is decoded
SIDE = 256
FORMATS = ("PNG", "JPEG", "WEBP")
CONTENT_TYPE = "image/webp"


def redraw(content: bytes) -> bytes:
    """Return the picture as a square WebP of 256 pixels, its middle if it is not square.

    Raises InvalidInput for a file that is too large, of another format, or broken.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError  # at the first picture: the web process starts without it

    if not 0 < len(content) <= MAX_FILE_BYTES:
        raise InvalidInput("a logo may have 1 MiB", field="logo")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
                if max(opened.size) > MAX_SIDE:
                    raise InvalidInput(f"a logo may have {MAX_SIDE} by {MAX_SIDE} pixels", field="logo")
                upright = ImageOps.exif_transpose(opened).convert("RGBA")
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise InvalidInput(f"a logo may have {MAX_SIDE} by {MAX_SIDE} pixels", field="logo") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):
        raise InvalidInput("this is no PNG, JPEG or WebP picture", field="logo") from None
    square = ImageOps.fit(upright, (SIDE, SIDE), Image.Resampling.LANCZOS)
    target = io.BytesIO()
    square.save(target, "WEBP", quality=85, method=4)
    return target.getvalue()
