"""Series of demand by hour for `benchmarks.capacity.forecasts`: CSV files of a folder, or made up from a seed."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from capacity.forecast import WEEK, Hours

FIRST = 3 * WEEK  # hours of history that the first origin has
MADE_UP_WEEKS = 13
_HOUR = timedelta(hours=1)
_MOST_HOURS = 24 * 3660


@dataclass(frozen=True)
class Series:
    """Values by hour from `start` on; nan: an hour without a value."""

    name: str
    start: datetime
    values: Hours


class LeftOut(ValueError):
    """A file that is no series of demand, with the reason."""


def read_csv(path: Path) -> Series:
    """Read a CSV file with the columns timestamp (ISO 8601; UTC where it names no zone) and value.

    The value of an hour is the mean of the values in it, so that a lost sample does not look like a quiet hour.
    Raises LeftOut for a file that has no such columns, or values that no demand has.
    """
    hours: dict[datetime, list[float]] = {}
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if not {"timestamp", "value"} <= set(rows.fieldnames or ()):
            raise LeftOut("it has no columns timestamp and value")
        for row in rows:
            try:
                at, value = datetime.fromisoformat(row["timestamp"]), float(row["value"])
            except (TypeError, ValueError):
                raise LeftOut(f"line {rows.line_num} is no timestamp and value") from None
            if not np.isfinite(value) or value < 0:
                raise LeftOut(f"line {rows.line_num} has {value}, and demand is finite and not negative")
            at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
            hours.setdefault(at.replace(minute=0, second=0, microsecond=0), []).append(value)
    if not hours:
        raise LeftOut("it has no rows")
    start = min(hours)
    length = (max(hours) - start) // _HOUR + 1
    if length > _MOST_HOURS:
        raise LeftOut(f"it spans {length // 24} days, 10 years at most are read")
    values = np.full(length, np.nan)
    for at, found in hours.items():
        values[(at - start) // _HOUR] = np.mean(found)
    return Series(path.stem, start, values)


def read_folder(folder: Path, origins: int) -> tuple[list[Series], dict[str, str]]:
    """Return the series of all CSV files below `folder`, and why files were left out, by name.

    Raises FileNotFoundError where the folder has no CSV file.
    """
    files = sorted(folder.rglob("*.csv"))
    if not files:
        raise FileNotFoundError(f"{folder} has no CSV file")
    kept, left_out = [], {}
    for file in files:
        try:
            series = read_csv(file)
            origins_of(series, origins)
        except LeftOut as reason:
            left_out[file.stem] = str(reason)
        else:
            kept.append(series)
    return kept, left_out


def origins_of(series: Series, count: int) -> Sequence[int]:
    """Return the hours at which forecasts begin: `count` of them, whole days apart, evenly over the series.

    The first has three weeks behind it, the last a week ahead. Raises LeftOut for a series that is too short.
    """
    last = len(series.values) - WEEK
    apart = (last - FIRST) // 24 // max(1, count - 1)
    if apart < 1:
        needed = (FIRST + WEEK) // 24 + count - 1
        raise LeftOut(f"it has {len(series.values) / 24:.0f} days, and {count} origins need {needed}")
    found = [last - 24 * apart * step for step in range(count)]
    empty = [origin for origin in found if not np.nansum(series.values[origin : origin + WEEK])]
    if empty or not np.nansum(series.values[: found[-1]]):
        raise LeftOut("one of its weeks has no demand at all")
    return found[::-1]


def made_up(seed: int, count: int) -> list[Series]:
    """Return `count` series of calls with days, weekends, growth, noise, spikes, holidays and level shifts.

    Each has its own share of these, drawn from the seed; every third is as bursty as public series are.
    """
    return [_one(np.random.default_rng([seed, number]), number) for number in range(count)]


def _one(chance: np.random.Generator, number: int) -> Series:
    hours = np.arange(MADE_UP_WEEKS * WEEK)
    hour, day = hours % 24, hours // 24
    peak, second = chance.uniform(9, 20), chance.uniform(0, 0.5)
    daily = np.cos((hour - peak) / 24 * 2 * np.pi) + second * np.cos((hour - peak) / 12 * 2 * np.pi)
    shape = np.exp(chance.uniform(0.3, 1.1) * daily)
    shape = shape * np.where(day % 7 >= 5, chance.uniform(0.4, 1.2), 1.0)
    level = 10 ** chance.uniform(1.5, 4) * (1 + chance.uniform(-0.02, 0.05)) ** (hours / WEEK)
    for _ in range(chance.integers(0, 3)):  # a customer comes or goes
        level[chance.integers(WEEK, len(hours)) :] *= chance.uniform(0.6, 1.7)
    for holiday in chance.choice(MADE_UP_WEEKS * 7, chance.integers(1, 4), replace=False):
        level[day == holiday] *= chance.uniform(0.3, 0.8)
    for at in chance.integers(0, len(hours), chance.integers(4, 25)):
        level[at : at + chance.integers(1, 6)] *= chance.uniform(1.5, 5)
    bursty = 0.35 if number % 3 == 2 else chance.uniform(0.05, 0.15)
    noise = np.zeros(len(hours))
    for at in range(1, len(hours)):  # calls that are many now are many in the next hour, too
        noise[at] = 0.6 * noise[at - 1] + chance.normal(0, bursty)
    start = datetime(2026, 6, 1, tzinfo=UTC)
    return Series(f"made up {number + 1}", start, chance.poisson(level * shape * np.exp(noise)).astype(float))
