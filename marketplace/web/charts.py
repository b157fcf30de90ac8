"""Geometry of the server-rendered SVG charts. Pure: numbers in, numbers for SVG attributes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta

WIDTH, HEIGHT = 600, 120  # units of the day chart's viewBox


@dataclass(frozen=True)
class DayBar:
    """One day of a chart; x, y, width and height are viewBox units, and `value` is what the bar stands for."""

    day: date
    value: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class DayChart:
    """Bars for consecutive days, oldest first."""

    bars: tuple[DayBar, ...]
    maximum: int
    total: int

    @property
    def first(self) -> date:
        return self.bars[0].day

    @property
    def last(self) -> date:
        return self.bars[-1].day

    @property
    def rows(self) -> tuple[DayBar, ...]:
        """Return the data table: newest day first, days without anything left out."""
        return tuple(bar for bar in reversed(self.bars) if bar.value)


def build_day_chart(values: Mapping[date, int], *, last: date, days: int) -> DayChart:
    """Return a chart of `days` (≥ 1) days that end with `last`; days missing from `values` (each ≥ 0) count as zero."""
    dates = [last - timedelta(days=back) for back in range(days - 1, -1, -1)]
    maximum = max((values.get(day, 0) for day in dates), default=0)
    step = WIDTH / days
    bars = []
    for index, day in enumerate(dates):
        value = values.get(day, 0)
        # The smallest real value keeps a visible sliver: a day with one cheap prediction is not a day with none.
        height = max(HEIGHT * value / maximum, 2.0) if value and maximum else 0.0
        bars.append(
            DayBar(
                day=day,
                value=value,
                x=round(index * step + step * 0.12, 2),
                y=round(HEIGHT - height, 2),
                width=round(step * 0.76, 2),
                height=round(height, 2),
            )
        )
    return DayChart(bars=tuple(bars), maximum=maximum, total=sum(bar.value for bar in bars))


@dataclass(frozen=True)
class AccuracyBar:
    """Base against adapter on one data set; the shares are percent with one decimal."""

    dataset: str
    rows: int
    correct: int
    base_correct: int

    @property
    def percent(self) -> float:
        return round(100 * self.correct / self.rows, 1) if self.rows else 0.0

    @property
    def base_percent(self) -> float:
        return round(100 * self.base_correct / self.rows, 1) if self.rows else 0.0

    @property
    def against_base(self) -> str:
        """The difference to the base model, in words."""
        gain = round(self.percent - self.base_percent, 1)
        if gain == 0:
            return "level with the base"
        return f"{abs(gain)} points {'above' if gain > 0 else 'below'} the base"
