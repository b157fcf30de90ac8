"""One replica's load as plain numbers: what `figures.Sample` reads."""

from __future__ import annotations

from serving.engine import Engine


def load_of(engine: Engine) -> dict[str, float]:
    """Return the counters and gauges of `figures.Sample` by name, but for the time."""
    stats, gauges = engine.stats, engine.adapters.gauges()
    interactive, standard, batch = engine.admission.waits()
    return {
        "steps": float(stats.steps),
        "seats": float(engine.planner.limits.max_num_seqs),
        "running": float(stats.running),
        "waiting": float(stats.waiting),
        "ended": float(stats.finished),
        "interactive_s": interactive,
        "standard_s": standard,
        "batch_s": batch,
        "reload_s": engine.adapters.counters.reload_seconds,
        "busy_s": stats.busy_seconds,
        "pages": float(gauges.pool_bytes_total // engine.adapters.page_bytes),
    }
