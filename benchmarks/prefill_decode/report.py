"""The table of pulls over loopback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def report(results: Mapping[str, Any]) -> str:
    """Return one row for each length of prompt."""
    lines = [
        "| prompt, tokens | KV, MB | pull, ms | GB/s | first token, computed, ms | behind the pull, ms | same tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        lines.append(
            f"| {row['tokens']} | {row['bytes'] / 1e6:.1f} | {row['pull_ms']:.0f} | {row['gb_per_s']:.2f} "
            f"| {row['computed_ms']:.0f} | {row['first_token_ms']:.0f} | {row['same']} of {row['runs']} |"
        )
    return "\n".join(lines) + "\n"
