"""The writer's plans: made while the books are empty and kept, they never read more than the rows of their batch."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection as django_connection
from psycopg.conninfo import make_conninfo

from billing.statements import PLACE_HOLDS, SETTLE_HOLDS, place_parameters, settle_parameters
from marketplace.gateway import writer
from tests.database import application, as_superuser
from tests.marketplace.gateway.conftest import World
from tests.marketplace.gateway.test_writer import charge, terms

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY = 3_000
# Ledger transactions that look like those of as many predictions; their entries do not matter here.
OLD_PREDICTIONS = """
INSERT INTO billing_ledgertransaction (kind, reference) SELECT 'prediction', gen_random_uuid()::text
FROM generate_series(1, %s)
"""
ROWS_READ = """
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int FROM pg_stat_xact_user_tables
WHERE relname LIKE 'billing_%'
"""


def settle_one(login: psycopg.Connection[Any], world: World) -> int:
    """Place and settle one prediction in one transaction; return how many rows that read."""
    hold = terms(world)
    with login.transaction():
        login.execute(PLACE_HOLDS, place_parameters([hold]))
        (settled,) = login.execute(SETTLE_HOLDS, settle_parameters([charge(hold)])).fetchall()
        assert settled[1] == "settled" and settled[0] == hold.prediction_id
        login.execute("SET CONSTRAINTS ALL IMMEDIATE")
        row = login.execute(ROWS_READ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.django_db(transaction=True)
def test_a_settlement_reads_no_more_rows_when_thousands_were_settled_before(world: World) -> None:
    database = str(django_connection.settings_dict["NAME"])
    url = make_conninfo(settings.ENV.database_admin_url, dbname=database)
    options = f"-c role={application()} {writer._PLANS}"
    with psycopg.connect(url, autocommit=True, options=options) as login:
        first = settle_one(login, world)
        with as_superuser(), django_connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            cursor.execute(OLD_PREDICTIONS, [MANY])
            cursor.execute("SET session_replication_role = origin")
        after = settle_one(login, world)
    assert 0 < first < 300
    assert after < first + 100
