"""Geometry of the server-rendered SVG charts. Pure: numbers in, numbers for SVG attributes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from marketplace.catalog.intervals import wilson

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


LEAST_ROWS = 50  # a figure of fewer rows is shown in grey
MAX_SQUARES = 2_000
_SQUARE, _GAP, _COLUMNS = 10, 2, 36


@dataclass(frozen=True)
class Share:
    """A share of right answers with its 95 % interval, in percent with one decimal: numbers for SVG too."""

    correct: int
    rows: int

    @property
    def percent(self) -> float:
        return round(100 * self.correct / self.rows, 1) if self.rows else 0.0

    @property
    def low(self) -> float:
        return round(100 * wilson(self.correct, self.rows)[0], 1)

    @property
    def high(self) -> float:
        return round(100 * wilson(self.correct, self.rows)[1], 1)

    @property
    def reach(self) -> float:
        """Return the width of the interval."""
        return round(self.high - self.low, 1)


@dataclass(frozen=True)
class AccuracyBar:
    """A version's accuracy beside that of its base, measured on the same rows. `older`: a newer version is for sale."""

    rows: int
    correct: int
    base_correct: int
    older: bool = False

    @property
    def adapter(self) -> Share:
        return Share(self.correct, self.rows)

    @property
    def base(self) -> Share:
        return Share(self.base_correct, self.rows)

    @property
    def grey(self) -> bool:
        """Return whether the figure says little about the version that is for sale."""
        return self.older or self.rows < LEAST_ROWS

    @property
    def against_base(self) -> str:
        """The difference to the base model, in words."""
        gain = round(self.adapter.percent - self.base.percent, 1)
        if gain == 0:
            return "level with the base"
        return f"{abs(gain)} points {'above' if gain > 0 else 'below'} the base"


@dataclass(frozen=True)
class Square:
    """One row of an evaluation in a picture of all."""

    x: int
    y: int
    right: bool


@dataclass(frozen=True)
class AnswerGrid:
    """A square for each row, line by line; `width` and `height` are those of the viewBox, which begins at -1."""

    squares: tuple[Square, ...]
    width: int
    height: int


def build_answer_grid(right: Sequence[bool]) -> AnswerGrid:
    """Return the picture of the first `MAX_SQUARES` rows."""
    step = _SQUARE + _GAP
    squares = tuple(
        Square(step * (index % _COLUMNS), step * (index // _COLUMNS), good)
        for index, good in enumerate(right[:MAX_SQUARES])
    )
    lines = max(1, -(-len(squares) // _COLUMNS))
    return AnswerGrid(squares, step * _COLUMNS, step * lines)
