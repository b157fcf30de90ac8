"""The picture of a shared link (Open Graph, 1200 × 630): an inlay of six woods with the product's name."""

from __future__ import annotations

from functools import cache
from importlib import resources
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import ImageDraw, ImageFont

SIZE = (1200, 630)
SIDE = 90  # of a diamond, half its width
_GROUND, _NAME, _LINE = "#241a12", "#faf6ef", "#dfc193"
# Three faces of each wood, as in tokens.css.
_WOODS = (
    ("#f3dfbd", "#dfc193", "#c9a26c"),
    ("#d77f4d", "#b45c2c", "#8a3f14"),
    ("#6fa38a", "#3f7a62", "#22553f"),
    ("#8f6a4b", "#6d4c33", "#4b3222"),
    ("#7f9bc0", "#4c6c98", "#2c4a73"),
    ("#eadbc6", "#dcc9ae", "#cfb896"),
)


@cache
def share_picture() -> bytes:
    """Return the PNG; drawn once per process."""
    from PIL import Image, ImageDraw  # at the first picture: the web process starts without it

    image = Image.new("RGB", SIZE, _GROUND)
    draw = ImageDraw.Draw(image)
    height = round(SIDE * 0.866 * 2)
    for row in range(-1, SIZE[1] // height + 2):
        for column in range(4):
            x = 760 + column * 2 * SIDE + (row % 2) * SIDE
            _cube(draw, x, row * round(height * 0.866), _WOODS[(column * 2 + row * 3) % len(_WOODS)])
    draw.text((72, 200), "Intarsia", font=_font("Bold", 132), fill=_NAME)
    draw.text((76, 372), "Industry models,", font=_font("Regular", 46), fill=_LINE)
    draw.text((76, 428), "paid per prediction", font=_font("Regular", 46), fill=_LINE)
    buffer = BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _cube(draw: ImageDraw.ImageDraw, x: int, y: int, wood: tuple[str, str, str]) -> None:
    """Draw a hexagon of three diamonds around (x, y)."""
    half, rise = SIDE, round(SIDE * 0.5)
    top, bottom = (x, y - SIDE), (x, y + SIDE)
    left_up, left_down = (x - half, y - rise), (x - half, y + rise)
    right_up, right_down = (x + half, y - rise), (x + half, y + rise)
    draw.polygon([top, right_up, (x, y), left_up], fill=wood[0])
    draw.polygon([left_up, (x, y), bottom, left_down], fill=wood[1])
    draw.polygon([right_up, right_down, bottom, (x, y)], fill=wood[2])


def _font(weight: str, size: int) -> ImageFont.FreeTypeFont:
    from PIL import ImageFont

    file = resources.files("fontpkg_fira_sans").joinpath("files", f"FiraSans-{weight}.ttf")
    with file.open("rb") as opened:
        return ImageFont.truetype(BytesIO(opened.read()), size)
