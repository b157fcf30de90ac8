"""A version that looks used: a week of blocks, drift, thumbs and an alarm, for pages and the API."""

from __future__ import annotations

import random
from datetime import timedelta

from marketplace.catalog.models import Version
from marketplace.watch.drift import psi
from marketplace.watch.models import Alarm, Baseline, Block, Mark, ThumbTotal, Window
from marketplace.watch.sums import Sums, added, bucket_of
from tests.marketplace.watch.calls import CONTRACT, HOUR, hours_ago

WEEK = 7 * 24
WEIGHTS, SHIFTED = (6, 3, 1), (2, 3, 5)


def _sums(rng: random.Random, calls: int, weights: tuple[int, ...]) -> Sums:
    sums = Sums(calls=calls, failures=rng.choice((0, 0, 0, 1, 3)), spent_nano_usd=calls * 3_100)
    sums.finish = {"stop": calls - calls // 50, "length": calls // 50}
    sums.refused = {"insufficient_funds": 2, "rate_limited": 1} | ({"no_replica": 1} if sums.failures else {})
    for _ in range(calls):
        sums.prompt[bucket_of(round(rng.lognormvariate(4.2, 0.7)))] += 1
        sums.completion[bucket_of(rng.randint(6, 12))] += 1
        ttft = round(rng.lognormvariate(3.6, 0.5))
        sums.ttft[bucket_of(ttft)] += 1
        sums.duration[bucket_of(ttft * 3)] += 1
        sums.count_answer(rng.choices(range(3), weights)[0])
    return sums


def show_use(version: Version, *, shifted: bool = True) -> None:
    """Write a week of what the tasks would have written."""
    rng = random.Random(3)
    version.contract = CONTRACT
    version.save(update_fields=["contract"])
    base = Baseline(version_id=version.pk, calls=1_000)
    first = _sums(rng, 1_000, WEIGHTS)
    base.prompt, base.answers = first.prompt, first.answers
    base.save()
    calls, prompt, answers, start = 0, list[int](), list[int](), hours_ago(WEEK)
    for hour in range(WEEK, 0, -1):
        busy = 20 + abs(12 - hour % 24) * 7
        sums = _sums(rng, busy, SHIFTED if shifted and hour < 30 else WEIGHTS)
        end = hours_ago(hour) + HOUR
        Block.objects.create(version_id=version.pk, start=hours_ago(hour), end=end, **sums.columns())
        calls, prompt, answers = calls + busy, added(prompt, sums.prompt), added(answers, sums.answers)
        if calls >= 200:
            Window.objects.create(
                version_id=version.pk,
                start=start,
                end=end,
                calls=calls,
                prompt_psi=psi(base.prompt, prompt),
                answers_psi=psi(base.answers, answers),
            )
            calls, prompt, answers, start = 0, [], [], end
    ThumbTotal.objects.create(version_id=version.pk, up=212, down=19)
    Mark.objects.create(id=1, complete_at=hours_ago(0) + timedelta(minutes=7))
    if shifted:
        Alarm.objects.create(version_id=version.pk, metric="drift", firing=True, streak=2)
