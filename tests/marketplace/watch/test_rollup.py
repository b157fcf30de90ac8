"""Each prediction in the books is added once, whoever is killed, and is shown only in blocks of enough payers."""

from __future__ import annotations

import itertools
import uuid
from datetime import timedelta

import pytest
from django.db import connection, transaction

from billing.rollups.services import roll_up as count_usage
from marketplace.watch import blocks, rollup
from marketplace.watch.demand import drop_old_demand
from marketplace.watch.models import Block, Demand, Hour, HourCaller, Payer, Settled
from marketplace.watch.sums import bucket_of
from tests.marketplace.watch.calls import buyers, call, calls, hours_ago, sold_version, watch

pytestmark = pytest.mark.django_db


def counted() -> int:
    return sum(Hour.objects.values_list("calls", flat=True)) + sum(Block.objects.values_list("calls", flat=True))


def test_a_call_is_counted_once_with_its_histograms_and_without_its_text() -> None:
    version, (buyer,) = sold_version(), buyers(1)
    call(version, buyer, hours_ago(2), answer=1, duration_ms=300, ttft_ms=0)
    call(version, buyer, hours_ago(2), finish_reason="length", receipt="not a receipt")
    count_usage()
    assert (rollup.roll_up(), rollup.roll_up(), Settled.objects.count()) == (2, 0, 0)
    row = Hour.objects.get()
    assert (row.version_id, row.hour, row.calls, row.spent_nano_usd) == (version.pk, hours_ago(2), 2, 2_000)
    assert row.finish == {"stop": 1, "length": 1} and row.answers == [0, 1]
    assert row.prompt[bucket_of(50)] == 2 and row.duration[bucket_of(300)] == 1 and row.ttft[0] == 1
    assert sum(row.duration) == 1, "a receipt that cannot be read has no times"
    assert HourCaller.objects.get().requests == 2 and Payer.objects.count() == 1


def test_demand_has_classes_tokens_and_no_customer() -> None:
    version, (buyer, other) = sold_version(), buyers(2)
    call(version, buyer, hours_ago(3))
    call(version, other, hours_ago(3), latency_class="batch", cached_tokens=16)
    call(version, other, hours_ago(3), latency_class="batch")
    count_usage()
    assert (rollup.roll_up(), rollup.roll_up()) == (3, 0)
    rows = Demand.objects.order_by("latency_class").values_list(
        "version_id",
        "hour",
        "latency_class",
        "served",
        "refused",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
    )
    assert list(rows) == [
        (version.pk, hours_ago(3), "batch", 2, 0, 100, 16, 16),
        (version.pk, hours_ago(3), "standard", 1, 0, 50, 0, 8),
    ]
    assert not {"organization_id", "api_key_id"} & {field.name for field in Demand._meta.get_fields()}
    Demand.objects.update(hour=hours_ago(24 * 7 * 27))
    assert (drop_old_demand(), Demand.objects.count()) == (2, 0)


def test_batches_that_are_killed_add_nothing_twice_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    version, who = sold_version(), buyers(2)
    calls(version, who, hours_ago(2), 3)
    count_usage()
    add = rollup.add

    def killed(tally: rollup.Tally) -> None:
        add(tally)
        raise KeyboardInterrupt

    monkeypatch.setattr(rollup, "add", killed)
    with pytest.raises(KeyboardInterrupt), transaction.atomic():
        rollup.roll_up()
    assert counted() == 0 and Settled.objects.count() == 6
    monkeypatch.setattr(rollup, "add", add)
    assert rollup.roll_up(rows_at_once=4) == 6 and counted() == 6


def test_predictions_of_dropped_months_and_of_no_version_are_left_out() -> None:
    version, (buyer,) = sold_version(), buyers(1)
    call(version, buyer, hours_ago(2), version_id=None)
    call(version, buyer, hours_ago(2))
    count_usage()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM watch_settled")
        assert cursor.fetchone() == (2,)
    assert rollup.roll_up() == 2 and counted() == 1


def test_nothing_is_shown_below_twenty_calls_or_three_payers() -> None:
    version, who = sold_version(), buyers(4)
    calls(version, who[:2], hours_ago(9), 30)
    assert watch() == 0, "two payers"
    calls(version, who[2:3], hours_ago(8), 1, cost_nano_usd=0)
    assert watch() == 0, "a third organization that paid nothing"
    calls(version, [version.model.organization], hours_ago(7), 5)
    assert watch() == 0, "the creator is no payer of its own model"
    calls(version, who[2:3], hours_ago(6), 1)
    assert watch() == 1, "now the third has paid"
    block = Block.objects.get()
    assert (block.start, block.end, block.calls) == (hours_ago(9), hours_ago(7), 61)
    assert sorted(Hour.objects.values_list("calls", flat=True)) == [1, 5] and HourCaller.objects.count() == 2
    calls(version, who[:3], hours_ago(4), 6)
    assert watch() == 1, "eighteen calls"


def test_the_creators_own_calls_do_not_fill_a_block() -> None:
    version, who = sold_version(), buyers(3)
    calls(version, who, hours_ago(3), 6)
    calls(version, [version.model.organization], hours_ago(3), 50)
    assert watch() == 0
    calls(version, who, hours_ago(2), 1)
    assert watch() == 1 and Block.objects.get().calls == 71


def test_the_present_hour_is_never_shown_and_a_block_never_changes() -> None:
    version, who = sold_version(), buyers(3)
    calls(version, who, hours_ago(0), 10)
    assert watch() == 0 and counted() == 30
    calls(version, who, hours_ago(1), 10)
    assert watch() == 1
    before = Block.objects.values().get()
    call(version, who[0], hours_ago(1))  # committed late, or settled by the sweeper
    assert watch() == 1 and Block.objects.values().get() == before
    assert Hour.objects.get().calls == 31, "it counts in the hour after the block"


def test_every_difference_of_what_is_shown_is_a_sum_of_blocks_of_enough_payers() -> None:
    """Whatever looks and windows an observer subtracts, the rest is empty or has enough calls by enough payers."""
    version, who = sold_version(), buyers(5)
    looks: list[dict[int, int]] = []
    for hour in range(8, 0, -1):
        calls(version, who[hour % 4 :], hours_ago(hour), 1 + hour % 7)
        watch()
        looks.append(dict(Block.objects.values_list("id", "calls")))
    assert len(looks[-1]) >= 3
    for earlier, later in itertools.pairwise(looks):
        assert earlier.items() <= later.items(), "what was shown stays as it was"
        new = sum(later.values()) - sum(earlier.values())
        assert new == 0 or new >= blocks.LEAST_REQUESTS
    spans = list(Block.objects.order_by("start").values_list("start", "end"))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), "blocks do not overlap"


def test_another_version_and_an_unknown_one_are_apart() -> None:
    version, who = sold_version(), buyers(3)
    calls(version, who, hours_ago(2), 10, version_id=uuid.uuid4())
    assert watch() == 0
    calls(version, who, hours_ago(2), 10)
    assert watch() == 1 and Block.objects.get().version_id == version.pk
    assert Block.objects.get().end - Block.objects.get().start == timedelta(hours=1)


def test_versions_that_wait_cost_one_statement(django_assert_num_queries) -> None:
    version, who = sold_version(), buyers(2)
    for hour in range(9, 1, -1):
        calls(version, who, hours_ago(hour), 1)
    watch()
    with django_assert_num_queries(5):  # savepoint, the mark (2), candidates, savepoint
        assert blocks.close_blocks() == 0
