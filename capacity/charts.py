"""Pictures of a plan as SVG: text in, text out, no fonts, no scripts.

A picture has classes and no colours, so that a page gives it its own. `standalone` adds a style that suits a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 20, 30, 36
_FAR = 3.0  # times the greatest figure: where a limit is no longer drawn
STYLE = """
svg{font:12px system-ui,sans-serif;color:#1c2430}
.axis,.grid{stroke:#98a2b3;fill:none}.grid{opacity:.35}text{fill:currentColor}
.line{fill:none;stroke:#0b6e4f;stroke-width:2}.second{fill:none;stroke:#b54708;stroke-width:2}
.fan{fill:#0b6e4f;opacity:.18}.limit{stroke:#b42318;stroke-dasharray:5 4}
.dot{fill:#b54708}.chosen{fill:#0b6e4f}
.part0{fill:#0b6e4f}.part1{fill:#3a86c8}.part2{fill:#b54708}.part3{fill:#7a5195}.part4{fill:#d0d5dd}
.less{fill:#3a86c8}.more{fill:#b54708}
@media (prefers-color-scheme:dark){svg{color:#e6e9ef}.part4{fill:#475467}}
"""


@dataclass(frozen=True)
class Line:
    """A line through points (x, y). style: "line" or "second"; dots: points that are drawn as well."""

    label: str
    points: Sequence[tuple[float, float]]
    style: str = "line"
    dots: Sequence[tuple[float, float]] = ()
    chosen: tuple[float, float] | None = None


@dataclass(frozen=True)
class Limit:
    """A level that matters, drawn across."""

    label: str
    y: float


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    fan: Sequence[tuple[float, float, float]] = (),
    limits: Sequence[Limit] = (),
    from_zero: bool = True,
) -> str:
    """Return lines over one axis. fan: (x, low, high) of an interval; from_zero: whether the vertical axis has 0.

    Figures that are not finite are left out.
    """
    xs = [x for line in lines for x, _ in (*line.points, *line.dots)] + [x for x, _, _ in fan]
    ys = [y for line in lines for _, y in (*line.points, *line.dots)] + [y for _, *both in fan for y in both]
    marked = [line.chosen for line in lines if line.chosen is not None]
    xs, ys = [*xs, *(x for x, _ in marked)], [*ys, *(y for _, y in marked)]
    # A limit far above everything else would flatten the rest: it is named instead, at the upper edge.
    most = _FAR * max(_finite(ys), default=0.0)
    near = [limit for limit in limits if limit.y <= most or not ys]
    scale = _Scale(_finite(xs), _finite([*ys, *(limit.y for limit in near), *([0.0] if from_zero else [])]))
    parts = [_axes(scale, x_label, y_label)]
    far = [f"{limit.label} {_number(limit.y)}" for limit in limits if limit not in near]
    if far:
        parts.append(_text(WIDTH - _RIGHT, 12, f"{'; '.join(far)}: far above", anchor="end"))
    if fan:
        upper = [scale.point(x, high) for x, _, high in fan]
        lower = [scale.point(x, low) for x, low, _ in reversed(fan)]
        parts.append(f'<polygon class="fan" points="{" ".join(upper + lower)}"/>')
    parts += _limits(scale, near)
    for number, line in enumerate(lines):
        style = "second" if line.style == "second" else "line"
        points = " ".join(scale.point(x, y) for x, y in line.points if math.isfinite(x) and math.isfinite(y))
        parts.append(f'<polyline class="{style}" points="{points}"/>')
        for x, y in line.dots:
            parts.append(f'<circle class="dot" cx="{scale.x(x)}" cy="{scale.y(y)}" r="3.5"/>')
        if line.chosen is not None:
            parts.append(
                f'<circle class="chosen" cx="{scale.x(line.chosen[0])}" cy="{scale.y(line.chosen[1])}" r="5"/>'
            )
        if len(lines) > 1:
            at = _LEFT + 8 + number * 160
            parts.append(f'<line class="{style}" x1="{at}" x2="{at + 18}" y1="10" y2="10"/>')
            parts.append(_text(at + 24, 14, line.label))
    return _svg(title, "".join(parts), HEIGHT)


def _limits(scale: _Scale, limits: Sequence[Limit]) -> list[str]:
    """Return limits with their labels, which are moved apart where the lines are close."""
    parts, below = [], 0.0
    for limit in sorted(limits, key=lambda one: -one.y):
        y = scale.y(limit.y)
        # Along the upper edge run lines of shares near 100 %: there a label stands below its limit.
        below = max(y + 14 if y < _TOP + 16 else y - 4, below + 14)
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(_text(_LEFT + 8, below, limit.label))
    return parts


def stacked_bar(title: str, parts: Mapping[str, float], unit: str) -> str:
    """Return one bar of parts that add up, each with its share below."""
    total = sum(max(0.0, value) for value in parts.values())
    drawn, at, row = [], 8.0, 62
    for number, (name, value) in enumerate(parts.items()):
        width = (WIDTH - 16) * max(0.0, value) / total if total else 0.0
        style = f"part{min(number, 4)}"
        words = f"{name}: {value:,.3g} {unit}"
        drawn.append(f'<rect class="{style}" x="{at:.1f}" y="8" width="{width:.1f}" height="34">')
        drawn.append(f"<title>{escape(words)}</title></rect>")
        column = 8 + number % 3 * 210
        drawn.append(f'<rect class="{style}" x="{column}" y="{row - 9}" width="10" height="10"/>')
        drawn.append(_text(column + 16, row, words))
        at += width
        row += 18 if number % 3 == 2 else 0
    return _svg(title, "".join(drawn), row + 14)


def tornado_chart(title: str, rows: Sequence[tuple[str, float, float, float]], unit: str) -> str:
    """Return bars to both sides of today's value. rows: (input, when smaller, today, when greater)."""
    values = _finite([value for _, *three in rows for value in three])
    low, high = min(values, default=0.0), max(values, default=1.0)
    span = (high - low) or 1.0
    left, edge = 170, 64  # of the bars; beside them, room for the amounts
    width = WIDTH - left - 2 * edge - 36

    def place(value: float) -> float:
        return left + edge + width * (value - low) / span

    drawn = []
    for number, (name, smaller, today, greater) in enumerate(rows):
        y = 28 + number * 24
        drawn.append(_text(left - 8, y + 11, name, anchor="end"))
        if smaller == greater == today:
            drawn.append(_text(place(today) + 8, y + 11, "no change"))
            continue
        for style, value in (("less", smaller), ("more", greater)):
            drawn += _swing(name, style, value, today, place, y, unit)
    height = 28 + 24 * len(rows) + 22
    if rows:
        for at, style, words in ((left, "less", "20 % smaller"), (left + 120, "more", "20 % greater")):
            drawn.append(f'<rect class="{style}" x="{at}" y="4" width="10" height="10"/>')
            drawn.append(_text(at + 16, 13, words))
        middle = place(rows[0][2])
        drawn.append(f'<line class="axis" x1="{middle:.1f}" x2="{middle:.1f}" y1="22" y2="{height - 20}"/>')
        drawn.append(_text(middle, height - 6, f"planned: {rows[0][2]:,.2f} {unit}", anchor="middle"))
    return _svg(title, "".join(drawn), height)


def _swing(
    name: str, style: str, value: float, today: float, place: Callable[[float], float], y: float, unit: str
) -> list[str]:
    """Return one bar from today's value to another, with its figure beside it."""
    if not math.isfinite(value):
        return [_text(WIDTH - 8, y + 11, "no fleet serves", anchor="end")]
    first, last = sorted((place(today), place(value)))
    bar = (
        f'<rect class="{style}" x="{first:.1f}" y="{y}" width="{last - first:.1f}" height="15">'
        f"<title>{escape(name)}: {_number(value)} {escape(unit)}</title></rect>"
    )
    if value == today:
        return [bar]
    lower = value < today
    return [bar, _text(first - 4 if lower else last + 4, y + 11, f"{value:,.2f}", anchor="end" if lower else "start")]


def standalone(svg: str) -> str:
    """Return a picture as a file of its own, with colours for light and dark."""
    head, rest = svg.split(">", 1)
    return f"{head}><style>{STYLE}</style>{rest}\n"


class _Scale:
    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.x_ticks = _ticks(min(xs, default=0.0), max(xs, default=1.0))
        self.y_ticks = _ticks(min(ys, default=0.0), max(ys, default=1.0))

    def x(self, value: float) -> float:
        first, last = self.x_ticks[0], self.x_ticks[-1]
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (value - first) / (last - first), 1)

    def y(self, value: float) -> float:
        first, last = self.y_ticks[0], self.y_ticks[-1]
        share = min(1.0, max(0.0, (value - first) / (last - first)))
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * share, 1)

    def point(self, x: float, y: float) -> str:
        return f"{self.x(x)},{self.y(y)}"


def _ticks(low: float, high: float) -> list[float]:
    """Return four to seven round numbers that enclose an interval."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / 4))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10, 20) if span / (step * factor) <= 6)
    first = math.floor(low / step) * step
    count = max(1, math.ceil((high - first) / step - 1e-9))
    return [first + step * number for number in range(count + 1)]


def _axes(scale: _Scale, x_label: str, y_label: str) -> str:
    bottom = HEIGHT - _BOTTOM
    parts = [f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>']
    for tick in scale.y_ticks:
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(_text(_LEFT - 6, y + 4, _number(tick), anchor="end"))
    for tick in scale.x_ticks:
        parts.append(_text(scale.x(tick), bottom + 15, _number(tick), anchor="middle"))
    parts.append(_text(WIDTH - _RIGHT, HEIGHT - 4, x_label, anchor="end"))
    parts.append(_text(4, 12, y_label))
    return "".join(parts)


def _number(value: float) -> str:
    """Return a figure of a picture with four digits at most, and never in powers of ten."""
    text = f"{value:,.4g}"
    return f"{value:,.0f}" if "e+" in text else text


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _text(x: float, y: float, words: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(title: str, inside: str, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title, quote=True)}"><title>{escape(title)}</title>{inside}</svg>'
    )
