"""The table of what was measured, beside the figures to reach."""

from __future__ import annotations

from typing import Any

MOST_TTFT, MOST_ITL = 0.25, 1.2
LEAST_TRACES = 100_000


def report(measured: dict[str, Any]) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether every bar is reached."""
    lines, fine = [], True

    def line(name: str, value: float, bar: float, *, digits: int = 2, bound: str = "at most") -> None:
        nonlocal fine
        reached = value <= bar if bound == "at most" else value >= bar
        fine = fine and reached
        lines.append(f"{name:<66}{value:>9.{digits}f}  {bound} {bar}{'' if reached else '  MISSED'}")

    reading = measured.get("reading")
    if reading is not None:
        line(_ttft("all questions", reading, "all"), reading["all"]["ratio"], MOST_TTFT)
        line(_ttft("restored", reading, "restored"), reading["restored"]["ratio"], MOST_TTFT)
        itl = reading["others_itl_p99_ms"]
        name = f"others, ITL p99: {itl['with']:.0f} ms ÷ {itl['without']:.0f} ms without"
        line(name, itl["with"] / itl["without"], MOST_ITL)
        lines.append(
            f"{'prompt tokens that were cached, with and without':<66}"
            f"{reading['cached_share']['with']:>9.2f}  {reading['cached_share']['without']:.2f}"
        )
    privacy = measured.get("privacy")
    if privacy is not None:
        line(f"of {privacy['canaries']} pieces of KV, found on the disk", privacy["canaries_found"], 0, digits=0)
        name = f"of {privacy['adapter_blocks']} blocks of an adapter, that open once it is revoked"
        line(name, privacy["found_after_revocation"] + privacy["opened_after_revocation"], 0, digits=0)
    traces = measured.get("traces")
    if traces is not None:
        line("simulated traces in which somebody starves", traces["failed"], 0, digits=0)
        line(
            f"simulated traces, {traces['restored']:,} blocks restored, {traces['given_up']:,} restores given up",
            traces["count"],
            LEAST_TRACES,
            digits=0,
            bound="at least",
        )
    return lines, fine


def _ttft(which: str, reading: dict[str, Any], part: str) -> str:
    one = reading[part]
    return f"TTFT p50, {which}: {one['with_ms']:.0f} ms ÷ {reading['recomputed_ms']:.0f} ms to compute anew"
