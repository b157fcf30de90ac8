"""Plans and reviews without a simulation: their pictures are drawn by `capacity` itself."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from capacity.charts import Limit, Line, line_chart, stacked_bar, tornado_chart
from marketplace.planning.models import Plan

PROFILE = b'{"model": {"fingerprint": "' + b"ab" * 32 + b'"}}'  # what the platform itself reads of a profile
FILES = (("profile", "l4", PROFILE), ("prices", "", b"{}"), ("promises", "", b"{}"))
HOURS = [(float(hour), 5.0 + hour % 24 / 6) for hour in range(168)]


def document(base: str = "ab" * 32, name: str = "tiny") -> dict[str, Any]:
    """Return what `python -m capacity plan --json` prints, with one of each kind of picture."""
    demand = line_chart(
        "Calls a second",
        [Line("forecast", HOURS), Line("seen", [(x, 1.1 * y) for x, y in HOURS], style="second")],
        x_label="hours from now",
        y_label="calls/s",
        fan=[(x, 0.9 * y, 1.2 * y) for x, y in HOURS],
        limits=[Limit("the fleet bears", 21.4)],
    )
    points = [(2.0, 80.0), (4.0, 150.0), (6.0, 900.0)]
    curve = line_chart(
        "First token", [Line("p95", points, dots=points, chosen=(4.0, 150.0))], x_label="calls/s", y_label="ms"
    )
    bar = stacked_bar("Memory", {"weights": 0.27, "adapters": 0.02, "KV cache": 0.74, "free <b>": 0.5}, "GB")
    tornado = tornado_chart(
        "Cost", [("price of an hour", 40.3, 50.4, 60.5), ("demand", 50.4, 50.4, float("inf"))], "USD"
    )
    pictures = {"demand": demand, "curve": curve, "memory": bar, "tornado": tornado}
    return {
        "format": 1,
        "made_on": "2026-11-10",
        "check_by": "2026-11-17",
        "commit": "",
        "usage_sha256": "0" * 64,
        "currency": "USD",
        "source": "simulated",
        "summary": ["The fleet for the next week costs 50.40 USD.", f"{name}: 2 replicas in the busiest hours."],
        "warnings": ["The profile of l4 was made by another commit: calibrate again."],
        "tables": [
            {
                "name": "machines",
                "title": "Machines to have",
                "note": "A month has 730 hours.",
                "head": ["Offer", "Machines", "Per month"],
                "rows": [["l4, reserved", "2", "54.75 USD"]],
            }
        ],
        "figures": [
            {
                "name": key,
                "title": f"Figure {key}",
                "note": f"A note on {key}.",
                "svg": svg,
                "head": ["Level", "Calls/s"],
                "rows": [["1", "5.62"]],
            }
            for key, svg in pictures.items()
        ],
        "steps": [
            {
                "number": number,
                "title": f"Step {number}",
                "of": name if number < 12 else "",
                "inputs": {"calls": "3.33 a second"},
                "formula": "n = ⌈D_q·(1+g)/μ*(n)⌉ + k",
                "worked": "⌈5.62 × 1.05 / 9.00⌉ + 1 = 2",
                "result": "2 replicas",
                "value": 2.0,
                "unit": "replicas",
                "source": ("measured", "simulated", "transferred", "catalogue")[number % 4],
                "warnings": ["Only 120 requests were simulated."] if number == 10 else [],
            }
            for number in range(1, 14)
        ],
        "targets": {
            "format": 1,
            "made_at": "2026-11-10",
            "pools": {name: {"mu": {"1": 9.0, "2": 21.0, "4": 70.0}, "ceiling": {"1": 0.5}, "min": 2, "k": 1}},
        },
        "promised": [
            {
                "base": base,
                "name": name,
                "curve": [[0.5, 0.08], [2.0, 0.3], [4.0, 1.9]],
                "chosen": [3.0, 0.9],
                "promises": {"interactive": {"ttft": 1.0, "tpot": 0.1}, "batch": {"ttft": 60.0, "tpot": 1.0}},
            }
        ],
    }


def review(name: str = "tiny") -> dict[str, Any]:
    """Return what `python -m capacity review --json` prints."""
    svg = line_chart("Planned and seen", [Line("planned", HOURS)], x_label="hours", y_label="calls/s")
    figures = {"hours": 168, "wape": 0.123, "covered": 0.9, "peak": 1.04, "attained": 0.97, "stated": [0.96, 1.0]}
    base = {"name": name, **figures, "sampled": 1500, "kept": True, "output": 5.0, "planned_output": 5.1, "svg": svg}
    return {"format": 1, "plan": "2026-10-10", "held": True, "bases": [base]}


def made(**changes: Any) -> Plan:
    """Return a plan that was made."""
    now = timezone.now()
    fields = {"state": "done", "result": document(), "files": {"profile l4": "cd" * 32}, "finished_at": now}
    return Plan.objects.create(**(fields | changes))
