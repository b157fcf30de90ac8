"""Pages and API reads over 10,000 models and 5 million predictions: the 95th percentile of the time until the answer.

    python -m benchmarks.pages [--models 10000] [--rows 5000000] [--days 90] [--requests 40] [--out FOLDER]

The views run in this process, on a PostgreSQL that it starts, with the settings of the development stack but for
fsync, which reads do not need. Beside each sum stands the time in which PostgreSQL adds up the same predictions row by
row, as the pages did before there were sums.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

import tests.services  # noqa: F401  starts PostgreSQL and Valkey, and says in the environment where they are
from benchmarks.machine import RESULTS, cpu_kind, describe, table, write_suite

BAR_MS = 100.0


def main() -> int:
    """Fill the books, measure, print a table, write `pages.json`; return 1 if a page misses its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--customers", type=int, default=200)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    start_django()

    from benchmarks.pages.books import fill, make_market
    from benchmarks.pages.requests import PAGES, SUMS, Visitor
    from marketplace.standing.services import rank_models

    administrators = [psycopg.connect(os.environ["DATABASE_ADMIN_URL"], autocommit=True) for _ in range(2)]
    market = make_market(models=options.models, customers=options.customers)
    start = time.perf_counter()
    counted, seconds = fill(market, administrators, rows=options.rows, days=options.days)
    print(f"{options.rows:,} rows were written in {time.perf_counter() - start:.0f} s, {counted:,} of them of today")
    start = time.perf_counter()
    ranked = rank_models()
    ranking_s = time.perf_counter() - start
    print(f"{ranked:,} models were ranked in {ranking_s:.1f} s")
    visitor = Visitor(market)
    found = [_measure(name, lambda page=page: visitor.visit(page), options.requests) for name, page in PAGES.items()]
    for row in found:
        print(f"{row['page']:<34} p50 {row['p50_ms']:7.1f} ms   p95 {row['p95_ms']:7.1f} ms", flush=True)
    raw = {name: _once(administrators[0], statement, market) for name, statement in SUMS.items()}
    for name, taken in raw.items():
        print(f"{name:<34} {taken:7.1f} s from predictions", flush=True)
    about = describe()
    added = "; ".join(f"{name} {taken} s" for name, taken in raw.items())
    parts = [
        f"{options.models:,} models, {options.rows:,} predictions in {options.days} days.",
        table(["page", "p50 ms", "p95 ms", "queries"], [row.values() for row in found]),
        f"Added up from predictions: {added}. {round(counted / seconds):,} predictions are summed up per second.",
    ]
    print(write_suite(options.out or RESULTS / cpu_kind(about), "pages", {"machine": about}, parts))
    return int(any(row["p95_ms"] > BAR_MS for row in found))


def start_django() -> None:
    """Make the database that the environment names, migrate it and set Django up."""
    name = os.environ["DATABASE_URL"].rpartition("/")[2]
    with psycopg.connect(os.environ["DATABASE_ADMIN_URL"].rpartition("/")[0] + "/postgres", autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
    os.environ["DJANGO_SETTINGS_MODULE"] = "marketplace.config.settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def _measure(name: str, visit: Callable[[], int], requests: int) -> dict[str, Any]:
    """Return the times of a page; its first three visits, which load templates and fill caches, are left out."""
    taken = []
    queries = 0
    for number in range(requests + 3):
        start = time.perf_counter()
        queries = visit()
        if number >= 3:
            taken.append((time.perf_counter() - start) * 1e3)
    p95 = statistics.quantiles(taken, n=20)[-1]
    return {"page": name, "p50_ms": round(statistics.median(taken), 1), "p95_ms": round(p95, 1), "queries": queries}


def _once(administrator: psycopg.Connection, statement: str, market: Any) -> float:
    start = time.perf_counter()
    administrator.execute(statement, {"creator": market.creator.pk, "customer": market.customer.pk}).fetchall()
    return round(time.perf_counter() - start, 1)


if __name__ == "__main__":
    raise SystemExit(main())
