"""The fleet as tables in a terminal, from the answer of `GET /api/v1/platform/fleet`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from creator_cli.reading import Reader
from creator_cli.streams import printable

_TONES = {"healthy": "green", "live": "green", "late": "red", "blind": "red", "down": "red", "silent": "red"}
_EVENTS = 8


def fleet_view(answer: Mapping[str, Any]) -> Group:
    """Return the tables of pools, replicas and last events; with the places of adapters, if those were asked for."""
    reader = Reader(answer, "fleet")
    pools = [Reader(one, "pool") for one in reader.items("pools")]
    parts: list[Any] = [_pools(pools), *_why(pools)]
    parts += ["", _replicas([Reader(one, "replica") for one in reader.items("replicas")])]
    if answer.get("adapters") is not None:
        parts += ["", _adapters([Reader(one, "adapter") for one in reader.items("adapters")])]
    parts += ["", _events([Reader(one, "event") for one in reader.items("events")[:_EVENTS]])]
    return Group(*parts)


def _pools(pools: list[Reader]) -> Table:
    table = _table("Pool", "State", "Live", "Wants", "Load", "Queue", "Waits i/s/b, s", "Calls/s", "Refused/s", "KV")
    for pool in pools:
        whole = pool.whole()
        classes = [Reader(one, "class").whole() for one in pool.items("classes")]
        scaling = whole.get("scaling") or {}
        table.add_row(
            Text(printable(pool.text("name"))),
            _state(pool.text("state")),
            str(pool.integer("live")),
            _shown(scaling.get("wanted")),
            _shown(whole.get("load_percent"), " %"),
            str(pool.integer("waiting")),
            " / ".join(_shown(one.get("wait_s")) for one in classes),
            _shown(sum(_number(one.get("arrivals_per_s")) for one in classes)),
            _shown(sum(_number(one.get("refused_per_s")) for one in classes)),
            _shown(whole.get("kv_percent"), " %"),
        )
    return table


def _why(pools: list[Reader]) -> list[Text]:
    """Return a line for each pool that a fleet scales: its wish and the reason."""
    lines = []
    for pool in pools:
        scaling = pool.whole().get("scaling")
        if not isinstance(scaling, dict):
            continue
        found = Reader(scaling, "scaling")
        text = (
            f"{pool.text('name')} wants {found.integer('wanted')} ({found.text('why')}), has ordered "
            f"{found.integer('ordered')} of at most {found.integer('most')}"
        )
        if not found.flag("fresh"):
            text += f"; its controller last reported {_shown(scaling.get('age_seconds'))} s ago"
        lines.append(Text(printable(text), style="dim"))
    return lines


def _replicas(replicas: list[Reader]) -> Table:
    table = _table("Replica", "State", "Running", "Queue", "Tokens/s", "KV", "Adapters", "Build")
    for one in replicas:
        whole = one.whole()
        table.add_row(
            Text(printable(one.text("name"))),
            _state(one.text("state")),
            str(one.integer("running")),
            str(one.integer("waiting")),
            _shown(whole.get("tokens_per_second")),
            _shown(whole.get("kv_percent"), " %"),
            str(one.integer("resident_count")),
            Text(printable(str(whole.get("build") or "")[:12]), style="dim"),
        )
    return table


def _adapters(adapters: list[Reader]) -> Table:
    table = _table("Adapter", "Where it is in memory")
    for one in adapters:
        where = ", ".join(one.texts("replicas")) or "nowhere"
        table.add_row(Text(printable(one.text("name"))), Text(printable(where)))
    return table


def _events(events: list[Reader]) -> Table:
    table = _table("At", "Replica", "Event", "Callers")
    for one in events:
        effects = one.whole().get("effects")
        harm = [f"{count} {name}" for name, count in effects.items() if count] if isinstance(effects, dict) else []
        callers = ", ".join(harm) or ("none noticed" if isinstance(effects, dict) else "")
        cells = (one.text("at")[:19].replace("T", " "), one.text("replica"), one.text("what"), callers)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _state(state: str) -> Text:
    return Text(printable(state), style=_TONES.get(state, "yellow"))


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def _shown(value: object, unit: str = "") -> str:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return "–"
    return f"{value:g}{unit}" if isinstance(value, int) else f"{value:.1f}{unit}"
