"""A look at each new block: drift, thresholds, and telling the creator. In the transaction that makes the block."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings

from marketplace.alerts.services import tell
from marketplace.catalog.models import Model, Version
from marketplace.watch.drift import BASELINE_CALLS, WINDOW_CALLS, psi
from marketplace.watch.models import Alarm, Baseline, Block, Threshold, Window
from marketplace.watch.rules import METRICS, AlarmState, Event, Metric, advance, is_beyond, measured
from marketplace.watch.sums import Sums, added


def thresholds_of(model: Model) -> dict[str, float | None]:
    """Return the threshold of each alarm; None is off."""
    own = dict(Threshold.objects.filter(model=model).values_list("metric", "value"))
    return {name: own.get(name, metric.default) for name, metric in METRICS.items()}


def look_at(version: Version, block: Block) -> None:
    """Measure a new block, and fire or clear what follows from it."""
    hours = (block.end - block.start).total_seconds() / 3600
    promises_whole = bool(version.contract and version.contract.get("output_schema"))
    values = measured(Sums.of(block), hours=hours, promises_whole=promises_whole)
    window = _drifted(version.pk, block)
    if window is not None:
        values["drift"] = window.psi
    thresholds = thresholds_of(version.model)
    for name, value in values.items():
        threshold = thresholds[name]
        if threshold is None:
            Alarm.objects.filter(version_id=version.pk, metric=name).delete()
        else:
            _judge(version, METRICS[name], value, threshold, block)


def _judge(version: Version, metric: Metric, value: float, threshold: float, block: Block) -> None:
    row = Alarm.objects.filter(version_id=version.pk, metric=metric.name).first()
    row = row or Alarm(version_id=version.pk, metric=metric.name)
    state, event = advance(AlarmState(row.firing, row.streak), beyond=is_beyond(metric, value, threshold))
    row.firing, row.streak = state.firing, state.streak
    row.save()
    if event is not None:
        _tell(version, metric, value, threshold, block, event)


def _tell(version: Version, metric: Metric, value: float, threshold: float, block: Block, event: Event) -> None:
    model, unit = version.model, f" {metric.unit}" if metric.unit else ""
    name = f"{model.full_name}@{version.number}"
    bound = f"{'below' if metric.is_floor else 'above'} {threshold:g}{unit}"
    states = {"fired": f"{metric.label} {bound}", "cleared": f"{metric.label}: within {threshold:g}{unit} again"}
    times = f"{block.start:%-d %b, %H:%M} to {block.end:%-d %b, %H:%M} UTC"
    tell(
        organization_id=model.organization_id,
        kind=f"model.{metric.name}",
        once=f"{version.pk}:{block.pk}",
        subject=f"{name}: {states[event]}",
        text=(
            f"{name}\n\n{metric.label}: {value:.4g}{unit}, {times}.\nThe alarm is set to {bound}.\n\n"
            f"In use: {settings.ENV.public_url}/dashboard/models/{model.slug}/in-use\n"
        ),
        data={
            "event": event,
            "model": model.full_name,
            "version": version.number,
            "metric": metric.name,
            "value": round(value, 6),
            "threshold": threshold,
            "start": block.start.isoformat(),
            "end": block.end.isoformat(),
        },
    )


def _drifted(version_id: UUID, block: Block) -> Window | None:
    """Add the block to the baseline, or to the open window; return the window when it is full."""
    base, _ = Baseline.objects.get_or_create(version_id=version_id)
    if base.calls < BASELINE_CALLS:
        base.calls += block.calls
        base.prompt, base.answers = added(base.prompt, block.prompt), added(base.answers, block.answers)
        base.save()
        return None
    base.window_start = base.window_start or block.start
    base.window_calls += block.calls
    base.window_prompt = added(base.window_prompt, block.prompt)
    base.window_answers = added(base.window_answers, block.answers)
    window = None
    if base.window_calls >= WINDOW_CALLS:
        window = Window.objects.create(
            version_id=version_id,
            start=base.window_start,
            end=block.end,
            calls=base.window_calls,
            prompt_psi=psi(base.prompt, base.window_prompt),
            answers_psi=psi(base.answers, base.window_answers) if sum(base.answers) else None,
        )
        base.window_start, base.window_calls, base.window_prompt, base.window_answers = None, 0, [], []
    base.save()
    return window
