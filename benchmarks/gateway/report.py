"""The bars of the figures, and the figures as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.machine import Part, table

FAST_DISK_MS = 0.5  # a disk that is not slower has 3 ms for a prediction, another one its own time and 2.5


@dataclass(frozen=True)
class Promise:
    """One bar: `value` is at least or at most `bar`."""

    name: str
    value: float
    bar: float
    at_most: bool = False

    @property
    def kept(self) -> bool:
        """Return whether the bar is reached."""
        return self.value <= self.bar if self.at_most else self.value >= self.bar


def promises(result: Mapping[str, Any]) -> list[Promise]:
    """Return every bar with its figure."""
    disk = result["fdatasync_ms"]
    out, killed = result["running_out"], result["killed"]
    found = [
        Promise("predictions per second, 100 wallets", result["wallets"]["per_second"], 1_000),
        Promise("predictions per second, one wallet", result["one_wallet"]["per_second"], 800),
        Promise(
            "added latency at 100 per second, p50 ms",
            result["latency"]["added_p50_ms"],
            3.0 if disk <= FAST_DISK_MS else disk + 2.5,
            at_most=True,
        ),
        Promise("answers that failed", result["wallets"]["failed"] + result["one_wallet"]["failed"], 0, at_most=True),
        Promise("charged of 1,000 at once on credit for 400", out["charged"], 400),
        Promise("refused of them with 402", out["402"], 600),
        Promise("credit left and held after that", out["credit_left"] + out["held"], 0, at_most=True),
        Promise("holds of a killed gateway that stay open", killed["open"], 0, at_most=True),
        Promise("wallets overdrawn by them", killed["overdrawn"], 0, at_most=True),
    ]
    if "litellm" in result:
        ratio = result["wallets"]["per_second"] / result["litellm"]["per_second"]
        found.append(Promise("times LiteLLM's predictions per second", round(ratio, 1), 4))
    return found


def parts(result: Mapping[str, Any]) -> list[Part]:
    """Return what a reader is shown: the disk, the bars, the rates."""
    disk = f"fdatasync of 8 KiB: {result['fdatasync_ms']} ms (median). {result['gateways']} gateway processes."
    bars = [[one.name, f"{one.value:g}", f"{'≤' if one.at_most else '≥'} {one.bar:g}"] for one in promises(result)]
    latency = result["latency"]
    alone = (
        f"At 100 per second: p50 {latency['p50_ms']:.2f} ms, p95 {latency['p95_ms']:.2f}, p99 {latency['p99_ms']:.2f}"
        f"; the replica asked directly {latency['direct_p50_ms']:.2f}."
    )
    return [disk, table(["figure", "measured", "bar"], bars), _rates(result), alone]


def _rates(result: Mapping[str, Any]) -> Part:
    """Return the rates, with latency under full load and CPU time per prediction of every part."""
    named = [("100 wallets", result["wallets"]), ("one wallet", result["one_wallet"])]
    if "litellm" in result:
        named.append((f"LiteLLM {result['litellm']['version']}, no spend kept", result["litellm"]))
    rows = []
    for name, rate in named:
        cpu = ", ".join(f"{role} {value:.2f}" for role, value in rate["cpu_ms"].items() if value >= 0.005)
        figures = (f"{rate['per_second']:,.0f}", f"{rate['p50_ms']:.0f}", f"{rate['p99_ms']:.0f}")
        rows.append([name, *figures, f"{sum(rate['cpu_ms'].values()):.2f}: {cpu}"])
    return table(["", "per second", "p50 ms", "p99 ms", "CPU ms per prediction"], rows)
