"""Accelerators and their prices: TOML files in which every figure has a source and a date. Nothing here is a default.

Prices are the operator's own: one card costs up to 3.75 times as much at one provider as at another.
"""

from __future__ import annotations

import datetime
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from capacity.errors import PlanRefused

MICRO = 1_000_000  # of the currency's unit: money is counted in whole millionths
STALE_DAYS = 30
_HOURS_A_YEAR = 8760


@dataclass(frozen=True)
class Accelerator:
    """One card as its maker describes it, dense figures alone. Units: bytes, bytes/s, FLOP/s, bytes/s one way, W.

    fp8, link: None where the card has none
    """

    name: str
    memory: float
    bandwidth: float
    bf16: float
    fp8: float | None
    link: float | None
    watts: float
    source: str
    date: datetime.date


@dataclass(frozen=True)
class Price:
    """An offer of machines with `cards` accelerators each. hourly: millionths of the currency an hour for one machine.

    reserved: paid for every hour of the plan, used or not; else it is paid by the hour
    quota: machines that may be had, None without a limit
    """

    name: str
    accelerator: str
    cards: int
    hourly: int
    reserved: bool
    zone: str
    quota: int | None
    source: str
    date: datetime.date


@dataclass(frozen=True)
class PriceList:
    """All offers, in one currency (its ISO 4217 code). example: the prices are invented, and every page says so"""

    currency: str
    prices: tuple[Price, ...]
    example: bool = False


def read_catalogue(path: Path) -> dict[str, Accelerator]:
    """Return the accelerators of a TOML file by name. Raises PlanRefused."""
    rows = _rows(_load(path), "accelerator", path)
    found = [_accelerator(row) for row in rows]
    _require_distinct([one.name for one in found], path)
    return {one.name: one for one in found}


def read_prices(path: Path, catalogue: Mapping[str, Accelerator]) -> PriceList:
    """Return the offers of a TOML file; each names an accelerator of the catalogue. Raises PlanRefused."""
    data = _load(path)
    currency = data.get("currency")
    if not isinstance(currency, str) or len(currency) != 3 or not currency.isupper():
        raise PlanRefused(13, f'{path.name}: currency is a code of three capitals, such as "USD"')
    prices = []
    for row in [*_rows(data, "price", path, least=0), *_rows(data, "own", path, least=0)]:
        other = row.get("currency", currency)
        if other != currency:
            raise PlanRefused(
                13, f"{path.name}: {_name(row)} is in {other}, the list in {currency}: a plan has one currency"
            )
        if row.get("accelerator") not in catalogue:
            raise PlanRefused(
                13, f"{path.name}: {_name(row)} is for {row.get('accelerator')!r}, which the catalogue has not"
            )
        prices.append(_price(row))
    if not prices:
        raise PlanRefused(13, f"{path.name} has no offer")
    _require_distinct([one.name for one in prices], path)
    example = data.get("example", False)
    if not isinstance(example, bool):
        raise PlanRefused(13, f"{path.name}: example is true or false")
    return PriceList(currency, tuple(prices), example)


def stale(prices: PriceList, today: datetime.date) -> tuple[str, ...]:
    """Return a sentence for every price that is older than STALE_DAYS, or dated after today."""
    words = []
    for price in prices.prices:
        days = (today - price.date).days
        if days > STALE_DAYS:
            words.append(
                f"The price of {price.name} is {days} days old ({price.source}). Ask for it again, and plan again."
            )
        elif days < 0:
            words.append(f"The price of {price.name} is dated after today. Correct its date.")
    return tuple(words)


def owned_hourly(
    *,
    capex: Decimal,
    years: Decimal,
    rate: Decimal,
    kilowatts: Decimal,
    pue: Decimal,
    duty: Decimal,
    kilowatt_hour: Decimal,
    yearly: Decimal,
) -> int:
    """Return what an own machine costs an hour, in millionths.

    capex, kilowatt_hour, yearly (space and staff): the currency's units; rate: interest a year; pue: power of the
    building over that of the machine; duty: mean power over the greatest
    """
    growth = (1 + rate) ** years
    recovery = rate * growth / (growth - 1) if rate else 1 / years
    yearly_cost = capex * recovery + kilowatts * pue * duty * _HOURS_A_YEAR * kilowatt_hour + yearly
    return int((yearly_cost / _HOURS_A_YEAR * MICRO).to_integral_value())


def _accelerator(row: Mapping[str, Any]) -> Accelerator:
    name = _name(row)
    if row.get("dense") is not True:
        raise PlanRefused(
            13,
            f"{name}: say `dense = true` once its TFLOP/s are those without sparsity. Data sheets print twice as many, "
            "with a footnote",
        )
    bf16 = _figure(row, "tflops_bf16", 1, 100_000)
    fp8 = _figure(row, "tflops_fp8", 1, 200_000) if "tflops_fp8" in row else None
    if fp8 is not None and not 1.9 <= fp8 / bf16 <= 2.1:
        raise PlanRefused(
            13,
            f"{name}: fp8 is {fp8 / bf16:.2g} times bf16, and dense figures differ by 2: one of them is with sparsity",
        )
    return Accelerator(
        name,
        _figure(row, "memory_gb", 1, 10_000) * 1e9,
        _figure(row, "bandwidth_tb_s", 0.005, 1000) * 1e12,
        bf16 * 1e12,
        None if fp8 is None else fp8 * 1e12,
        _figure(row, "nvlink_gb_s", 1, 100_000) * 1e9 if "nvlink_gb_s" in row else None,
        _figure(row, "watts", 1, 100_000),
        *_origin(row),
    )


def _price(row: Mapping[str, Any]) -> Price:
    own = "capex" in row
    if own:
        names = ("capex", "years", "rate", "kilowatts", "pue", "duty", "kilowatt_hour", "yearly")
        hourly = owned_hourly(**{name: _money(row, name) for name in names})
    else:
        hourly = int((_money(row, "hourly") * MICRO).to_integral_value())
    commitment = "reserved" if own else row.get("commitment", "on-demand")
    if commitment not in ("reserved", "on-demand"):
        raise PlanRefused(13, f'{_name(row)}: commitment is "reserved" or "on-demand"')
    if hourly <= 0:
        raise PlanRefused(13, f"{_name(row)}: an hour costs more than nothing")
    return Price(
        _name(row),
        row["accelerator"],
        int(_figure(row, "cards", 1, 1024, whole=True)) if "cards" in row else 1,
        hourly,
        commitment == "reserved",
        str(row.get("zone", "")),
        int(_figure(row, "quota", 0, 1_000_000, whole=True)) if "quota" in row else None,
        *_origin(row),
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > 1 << 20:
            raise PlanRefused(13, f"{path.name} is longer than 1 MiB")
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise PlanRefused(13, f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise PlanRefused(13, f"{path.name} is not TOML: {error}") from None


def _rows(data: Mapping[str, Any], key: str, path: Path, least: int = 1) -> list[dict[str, Any]]:
    rows = data.get(key, [])
    if not isinstance(rows, list) or len(rows) < least or not all(isinstance(row, dict) for row in rows):
        raise PlanRefused(13, f"{path.name} has no [[{key}]]")
    return rows


def _name(row: Mapping[str, Any]) -> str:
    name = row.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= 100:
        raise PlanRefused(13, "every entry has a name of 1 to 100 characters")
    return name


def _figure(row: Mapping[str, Any], key: str, least: float, most: float, *, whole: bool = False) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise PlanRefused(13, f"{_name(row)}: {key} is a {'whole ' if whole else ''}number")
    if not (math.isfinite(value) and least <= value <= most):
        raise PlanRefused(13, f"{_name(row)}: {key} is {value}, and lies between {least:g} and {most:g}")
    return float(value)


def _money(row: Mapping[str, Any], key: str) -> Decimal:
    value = row.get(key)
    try:
        if not isinstance(value, str):
            raise InvalidOperation
        amount = Decimal(value)
    except InvalidOperation:
        raise PlanRefused(13, f'{_name(row)}: {key} is a number in quotes, such as "2.50"') from None
    if not amount.is_finite() or amount < 0 or amount > 10**9 or (key in ("years", "pue") and amount < 1):
        raise PlanRefused(13, f"{_name(row)}: {key} is {value}, which cannot be")
    return amount


def _origin(row: Mapping[str, Any]) -> tuple[str, datetime.date]:
    source, date = row.get("source"), row.get("date")
    if not isinstance(source, str) or not source.strip() or type(date) is not datetime.date:
        raise PlanRefused(13, f"{_name(row)}: say where the figures are from, and of which day (source, date)")
    return source.strip(), date


def _require_distinct(names: list[str], path: Path) -> None:
    for name in names:
        if names.count(name) > 1:
            raise PlanRefused(13, f"{path.name} has {name} twice")
