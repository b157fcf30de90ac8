"""Tasks of this app. Each may run twice, or be killed at any line."""

from __future__ import annotations

from celery import shared_task

from marketplace.watch.blocks import close_blocks
from marketplace.watch.demand import drop_old_demand
from marketplace.watch.latency import note_latency
from marketplace.watch.refusals import count_refusals
from marketplace.watch.rollouts import stop_worse_rollouts
from marketplace.watch.rollup import roll_up
from marketplace.watch.thumbs import count_thumbs


@shared_task
def watch_models() -> None:
    """Add refusals and predictions to the hours, close blocks, count thumbs, and end rollouts that went wrong."""
    count_refusals()
    roll_up()
    close_blocks()
    count_thumbs()
    stop_worse_rollouts()
    drop_old_demand()


@shared_task
def note_measured_latency() -> None:
    """Give each listed model its measured time to the first token, for the filters of the catalogue."""
    note_latency()
