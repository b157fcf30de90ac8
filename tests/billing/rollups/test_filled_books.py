"""The filled books of the page benchmark: their sums are those that the platform itself makes of these predictions."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from benchmarks.pages import books
from benchmarks.pages.books import fill, make_market
from billing.rollups.services import roll_up
from tests.database import as_superuser

TABLES = {
    "billing_usageday": "organization_id, day, model_id, key_line, version_id, latency_class, model_name, predictions, "
    "prompt_tokens, cached_tokens, completion_tokens, charged_nano_usd",
    "billing_earningsday": "organization_id, day, reason, model_id, version_id, latency_class, model_name, "
    "predictions, prompt_tokens, cached_tokens, completion_tokens, charged_nano_usd, earned_nano_usd",
    "billing_spantotal": "facet, organization_id, span, start, subject, label, predictions, prompt_tokens, "
    "completion_tokens, charged_nano_usd, earned_nano_usd, customers",
    "billing_spancustomer": "organization_id, subject, span, start, customer_id",
}
AGAIN = """
INSERT INTO billing_rollupqueue (prediction_id, settled_at) SELECT prediction_id, created_at FROM billing_usage;
INSERT INTO billing_rollupqueue (prediction_id, settled_at, correction_id)
    SELECT h.id, h.closed_at, c.id FROM billing_correction c JOIN billing_hold h ON h.id = c.prediction_id;
"""


def rows() -> dict[str, list[tuple[Any, ...]]]:
    with connection.cursor() as cursor:
        found = {}
        for table, columns in TABLES.items():
            cursor.execute(f"SELECT {columns} FROM {table}")
            found[table] = sorted(cursor.fetchall(), key=repr)
        return found


@pytest.mark.django_db(transaction=True)
def test_the_sums_written_in_bulk_are_those_that_the_platform_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "CORRECTED", 20)
    market = make_market(models=15, customers=4)
    with as_superuser():
        assert connection.connection is not None
        counted, _ = fill(market, [connection.connection], rows=2_400, days=8)
        assert counted >= 300
        in_bulk = rows()
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            cursor.execute("".join(f"DELETE FROM {table};" for table in (*TABLES, "billing_rollupqueue")) + AGAIN)
            cursor.execute("SET session_replication_role = origin")
        while roll_up():
            pass
        assert rows() == in_bulk and all(in_bulk.values())
