"""Promises begin with the next month, within their bounds, and never change."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from django.db import DatabaseError, connection, transaction

from marketplace.accounts.errors import InvalidInput
from marketplace.promises import services
from marketplace.promises.errors import NothingToPromise
from marketplace.promises.measuring import next_month
from marketplace.promises.models import Month, Promise, PromiseKind
from marketplace.promises.selectors import promises_of
from tests.database import as_owner
from tests.marketplace.promises.conftest import AFTERWARDS, MONTH, Market


def test_a_promise_begins_with_the_next_month_and_never_changes(market: Market) -> None:
    first = services.set_promise(model=market.model, kind=PromiseKind.TTFT, bound=2_000)
    assert first.starts_on == next_month(date.today())
    services.set_promise(model=market.model, kind=PromiseKind.TTFT, bound=1_500)
    (promised,) = promises_of(model=market.model)
    assert (promised.bound, promised.next_bound) == (None, 1_500)
    services.set_promise(model=market.model, kind=PromiseKind.TTFT, bound=None)
    assert promises_of(model=market.model) == []
    for change in (
        "UPDATE promises_promise SET bound = 1",
        "DELETE FROM promises_promise",
        f"INSERT INTO promises_promise (model_id, kind, bound, starts_on) "
        f"VALUES ('{market.model.pk}', 'ttft', 1, '{MONTH}')",
    ):
        with pytest.raises(DatabaseError), transaction.atomic(), as_owner(), connection.cursor() as cursor:
            cursor.execute(change)
    assert Promise.objects.count() == 3


def test_a_month_before_the_promise_or_after_its_end_is_not_judged(market: Market) -> None:
    market.promise(PromiseKind.TTFT, 2_000, starts_on=MONTH)
    market.promise(PromiseKind.TTFT, None, starts_on=next_month(MONTH))
    buyer = market.buyer()
    for _ in range(10):
        market.call(buyer, ttft_ms=9_000)
    later = AFTERWARDS + timedelta(days=62)
    assert services.keep_promises(now=AFTERWARDS - timedelta(hours=2)) == 0  # the last holds may still be open
    assert services.keep_promises(now=later) == 1 and Month.objects.get().month == MONTH


def test_bounds_and_models_that_cannot_be_promised_are_refused(market: Market) -> None:
    for kind, bound in ((PromiseKind.TTFT, 49), (PromiseKind.VALID, 4_999), (PromiseKind.VALID, 9_991)):
        with pytest.raises(InvalidInput):
            services.set_promise(model=market.model, kind=kind, bound=bound)
    for schema in (None, {"type": "object"}, {"type": "string", "maxLength": 9_000}, {"type": "integer"}):
        market.version.contract = {"output_schema": schema, "max_tokens": 24}
        market.version.save(update_fields=["contract"])
        with pytest.raises(NothingToPromise):
            services.set_promise(model=market.model, kind=PromiseKind.VALID, bound=9_000)
    assert not Promise.objects.exists()
