"""Letters that papers can print, and the font of each.

Fira Sans is embedded in every paper. Chinese, Japanese and Korean letters use the fonts that PDF names for them,
which readers bring along (an embedded one would be 16 MB).
"""

from __future__ import annotations

import functools
from importlib import resources
from io import BytesIO
from itertools import groupby

REGULAR = "FiraSans-Regular"
BOLD = "FiraSans-Bold"
JAPANESE, CHINESE, KOREAN = "HeiseiKakuGo-W5", "STSong-Light", "HYGothic-Medium"


@functools.cache
def register_fonts() -> frozenset[int]:
    """Make the fonts known to reportlab, once; return the code points that Fira Sans has."""
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.cidfonts import UnicodeCIDFont
    from reportlab.pdfbase.ttfonts import TTFont

    folder = resources.files("fontpkg_fira_sans").joinpath("files")
    fonts = [TTFont(name, BytesIO(folder.joinpath(f"{name}.ttf").read_bytes())) for name in (REGULAR, BOLD)]
    for font in (*fonts, *(UnicodeCIDFont(name) for name in (JAPANESE, CHINESE, KOREAN))):
        pdfmetrics.registerFont(font)
    return frozenset.intersection(*(frozenset(font.face.charToGlyph) for font in fonts))


def unprintable(text: str) -> str:
    """Return the first character that no font here has, or an empty string."""
    known = register_fonts()
    return next((letter for letter in text if ord(letter) not in known and _eastern(letter) is None), "")


def marked_up(text: str, *, bold: bool = False) -> str:
    """Return text as reportlab's markup, escaped, with the font of each stretch of letters.

    Han letters beside kana are Japanese ones. A character that no font has prints as "?".
    """
    from xml.sax.saxutils import escape

    known = register_fonts()
    japanese = any(_eastern(letter) == JAPANESE for letter in text)
    latin = BOLD if bold else REGULAR
    parts = []
    for font, letters in groupby(text, key=lambda letter: _font(letter, known, japanese)):
        stretch = "".join(letters)
        if font is None:
            parts.append("?" * len(stretch))
        else:
            name = latin if font == REGULAR else font
            parts.append(f'<font name="{name}">{escape(stretch)}</font>')
    return "".join(parts)


def _font(letter: str, known: frozenset[int], japanese: bool) -> str | None:
    if ord(letter) in known:
        return REGULAR
    font = _eastern(letter)
    return JAPANESE if font == CHINESE and japanese else font


def _eastern(letter: str) -> str | None:
    code = ord(letter)
    if 0x3040 <= code <= 0x30FF or 0x31F0 <= code <= 0x31FF:
        return JAPANESE
    if 0xAC00 <= code <= 0xD7A3 or 0x1100 <= code <= 0x11FF or 0x3130 <= code <= 0x318F:
        return KOREAN
    # Han letters, and punctuation and full-width forms that the three share.
    if 0x4E00 <= code <= 0x9FFF or 0x3400 <= code <= 0x4DBF or 0x3000 <= code <= 0x303F or 0xFF01 <= code <= 0xFF5E:
        return CHINESE
    return None
