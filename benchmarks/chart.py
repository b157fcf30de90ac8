"""The README's chart: measured figures beside named peers, drawn from the kept results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from benchmarks import machine

FILE = Path(__file__).resolve().parents[1] / "docs" / "figures.svg"
WIDE, BAR_FROM, BAR_MOST, BAR_HIGH, ROW = 860, 250, 480, 18, 26
TITLE_HIGH, PANEL_GAP = 44, 22
Bars = Sequence[tuple[str, float]]
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Panel:
    """One group of bars. file: of the results, below their folder; bars: label and value, ours first"""

    title: str
    file: str
    bars: Callable[[Result], Bars]


def _cell(result: Result, column: str, *row: str) -> float:
    """Return the number in a column of the row that begins with these cells. Raises LookupError where it is missing."""
    for part in result["parts"]:
        if isinstance(part, dict) and column in part["head"]:
            for cells in part["rows"]:
                if tuple(cells[: len(row)]) == row:
                    return float(cells[part["head"].index(column)].replace(",", ""))
    raise LookupError(f"no {column} of {row}")


def _tokens(result: Result) -> Bars:
    names = {"Intarsia": "intarsia", "vLLM, CPU build": "vLLM 32 LoRAs", "transformers + PEFT": "transformers + PEFT"}
    return [(label, _cell(result, "tokens/s", "distinct", "32", engine)) for label, engine in names.items()]


def _predictions(result: Result) -> Bars:
    peer = f"LiteLLM {result['litellm']['version']}, no spend kept"
    ours = _cell(result, "per second", "100 wallets")
    return [("Intarsia, each one settled", ours), (peer, _cell(result, "per second", peer))]


def _answers(result: Result) -> Bars:
    one = result["samples"]["1"]
    return [("Intarsia with drafts", one["with"]), ("without", one["without"])]


PANELS = (
    Panel("Tokens per second: 32 clients, an adapter each", "zen5-2-cores/serving.json", _tokens),
    Panel("Metered predictions per second through the gateway", "amx-bf16-2-cores/gateway.json", _predictions),
    Panel("Answers per second of a lone client", "zen5-2-cores/speculation_bfloat16.json", _answers),
)


def drawn() -> str:
    """Return the chart as SVG: a panel for each result that is there."""
    lines: list[str] = []
    top = 0
    for panel in PANELS:
        file = machine.RESULTS / panel.file
        if file.exists():
            result = json.loads(file.read_text(encoding="utf-8"))
            bars = panel.bars(result)
            lines += _panel(panel.title, _origin(file.parent.name, result), bars, top)
            top += TITLE_HIGH + ROW * len(bars) + PANEL_GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {top}" role="img" '
        'aria-label="Measured figures beside named peers" font-family="system-ui, sans-serif" font-size="14">\n'
        f'<rect width="{WIDE}" height="{top}" fill="#fbf8f3"/>\n'
    )
    return head + "\n".join(lines) + "\n</svg>\n"


def _origin(kind: str, result: Result) -> str:
    about = result["machine"]
    return f"{about['cpu']} ({kind.split('-')[0]}), {about['cores']} cores, {result['date']}"


def _panel(title: str, origin: str, bars: Bars, top: int) -> Iterator[str]:
    """Yield the elements of a panel whose upper edge is at `top`."""
    most = max(value for _, value in bars)
    yield f'<text x="16" y="{top + 24}" font-weight="700" fill="#2d241b">{escape(title)}</text>'
    right = f'x="{WIDE - 16}" y="{top + 24}" text-anchor="end"'
    yield f'<text {right} font-size="12" fill="#6b5a49">{escape(origin)}</text>'
    for place, (label, value) in enumerate(bars):
        y = top + TITLE_HIGH + ROW * place
        long, colour = BAR_MOST * value / most, "#b08d57" if place else "#5b4a3a"
        said = f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
        yield f'<text x="{BAR_FROM - 10}" y="{y + 14}" text-anchor="end" fill="#2d241b">{escape(label)}</text>'
        yield f'<rect x="{BAR_FROM}" y="{y}" width="{long:.0f}" height="{BAR_HIGH}" rx="3" fill="{colour}"/>'
        yield f'<text x="{BAR_FROM + long + 8:.0f}" y="{y + 14}" fill="#2d241b">{said}</text>'
