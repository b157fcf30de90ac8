"""Geometry of the charts of a model in use. Pure: sums in, numbers for SVG attributes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from marketplace.watch.drift import ALERT, LOOK
from marketplace.watch.models import Block, Window

WIDTH, HEIGHT = 600, 120  # units of a chart's viewBox
_HOUR = 3600


@dataclass(frozen=True)
class Bar:
    """One bar; `note` is its text for a pointer, `kind` its class."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    note: str


@dataclass(frozen=True)
class Bars:
    """Bars with what the ends of their axis say."""

    bars: tuple[Bar, ...]
    first: str
    last: str


def block_bars(blocks: Sequence[Block], *, since: datetime, until: datetime) -> Bars:
    """Return requests per hour in each block, failures on top; a block is as wide as its time."""
    span = (until - since).total_seconds()
    rates = [(block.calls + block.failures) * _HOUR / (block.end - block.start).total_seconds() for block in blocks]
    most = max(rates, default=0.0)
    bars: list[Bar] = []
    for block, rate in zip(blocks, rates, strict=True):
        left = max(0.0, WIDTH * (block.start - since).total_seconds() / span)
        right = WIDTH * (block.end - since).total_seconds() / span
        width = max(1.0, (right - left) * 0.9)
        whole = HEIGHT * rate / most
        failed = whole * block.failures / (block.calls + block.failures)
        time = f"{block.start:%-d %b, %H:%M} to {block.end:%-d %b, %H:%M}"
        bars.append(_bar(left, width, whole - failed, "calls", f"{time}: {block.calls:,} calls"))
        if block.failures:
            ground, note = HEIGHT - whole + failed, f"{time}: {block.failures:,} failed"
            bars.append(_bar(left, width, failed, "failures", note, ground=ground))
    return Bars(tuple(bars), f"{since:%-d %b, %H:%M}", f"{until:%-d %b, %H:%M} UTC")


def _bar(x: float, width: float, height: float, kind: str, note: str, *, ground: float = HEIGHT) -> Bar:
    """Return a bar that stands on `ground`; the least of them is still seen."""
    height = max(height, 1.0)
    return Bar(round(x, 2), round(ground - height, 2), round(width, 2), round(height, 2), kind, note)


def histogram_bars(counts: Sequence[int], before: Sequence[int], unit: str) -> Bars | None:
    """Return the shares of doubling buckets, with those of the baseline beside them; None of an empty histogram."""
    used = [place for place, count in enumerate(counts) if count]
    if not used:
        return None
    used += [place for place, count in enumerate(before) if count]
    first, last = min(used), max(used)
    now, then = _shares(counts, first, last), _shares(before, first, last)
    most = max(*now, *then)
    step = WIDTH / (last - first + 1)
    bars: list[Bar] = []
    for place, (share, earlier) in enumerate(zip(now, then, strict=True)):
        low, high = edges(first + place)
        note = f"{low:,} to {high:,} {unit}: {share:.1%}"
        if any(then):
            earlier_note = f"first calls: {earlier:.1%}"
            bars.append(_bar((place + 0.1) * step, step * 0.3, HEIGHT * earlier / most, "before", earlier_note))
        left, width = (0.42, 0.48) if any(then) else (0.1, 0.8)
        bars.append(_bar((place + left) * step, step * width, HEIGHT * share / most, "calls", note))
    return Bars(tuple(bars), f"{edges(first)[0]:,}", f"{edges(last)[1]:,} {unit}")


def edges(place: int) -> tuple[int, int]:
    """Return the least and the greatest value of a bucket."""
    return (0, 0) if place == 0 else (2 ** (place - 1), 2**place - 1)


def _shares(counts: Sequence[int], first: int, last: int) -> list[float]:
    total = sum(counts)
    return [counts[place] / total if total and place < len(counts) else 0.0 for place in range(first, last + 1)]


@dataclass(frozen=True)
class AnswerLine:
    """One answer of a closed set: its share now and among the first calls, in percent and in units of a line."""

    label: str
    count: int
    percent: float
    before_percent: float | None
    width: float
    before_x: float | None


def answer_lines(labels: Sequence[str], counts: Sequence[int], before: Sequence[int]) -> tuple[AnswerLine, ...]:
    """Return the answers, the most frequent first; those that were never given are left out."""
    total, total_before = sum(counts), sum(before)
    parts = [_part(one, total) for one in counts] + [_part(one, total_before) for one in before]
    most = max(parts, default=0.0)
    found = []
    for place, label in enumerate(labels):
        now = counts[place] if place < len(counts) else 0
        then = before[place] if place < len(before) else 0
        if not now and not then:
            continue
        share, earlier = _part(now, total), _part(then, total_before)
        found.append(
            AnswerLine(
                label=label,
                count=now,
                percent=round(100 * share, 1),
                before_percent=round(100 * earlier, 1) if total_before else None,
                width=round(WIDTH * share / most, 2),
                before_x=round(WIDTH * earlier / most, 2) if total_before else None,
            )
        )
    return tuple(sorted(found, key=lambda line: (-line.count, line.label)))


def _part(count: int, total: int) -> float:
    return count / total if total else 0.0


@dataclass(frozen=True)
class Drift:
    """The line of PSI over windows, with the heights of both thresholds."""

    points: str
    dots: tuple[Bar, ...]
    look_y: float
    alert_y: float
    last: float


def drift_line(windows: Sequence[Window], *, since: datetime, until: datetime) -> Drift | None:
    """Return the line, or None before the first window."""
    if not windows:
        return None
    most = max(0.5, *(window.psi for window in windows))
    span = (until - since).total_seconds()
    dots = []
    for window in windows:
        x = WIDTH * (window.end - since).total_seconds() / span
        y = HEIGHT - HEIGHT * window.psi / most
        kind = "bad" if window.psi > ALERT else "warn" if window.psi > LOOK else "good"
        time = f"{window.start:%-d %b, %H:%M} to {window.end:%-d %b, %H:%M}"
        note = f"{time}: {window.psi:.3f} over {window.calls:,} calls"
        dots.append(Bar(round(x - 3, 2), round(y - 3, 2), 6, 6, kind, note))
    points = " ".join(f"{dot.x + 3:g},{dot.y + 3:g}" for dot in dots)
    look_y, alert_y = (round(HEIGHT - HEIGHT * bound / most, 2) for bound in (LOOK, ALERT))
    return Drift(points, tuple(dots), look_y, alert_y, windows[-1].psi)
