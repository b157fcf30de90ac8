"""Search of the catalogue: recall in the first five of each method, and the time of a search among 10,000 listings.

    python -m benchmarks.search [--listings 10000] [--requests 200] [--out FOLDER]

Needs the extra `search`. The selector, the catalogue's page and the API run in this process, on a PostgreSQL that it
starts, with the settings of the development stack but for fsync, which reads do not need. Encoding a
query is measured by itself: the other times are those of queries whose vector is remembered.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

import tests.services  # noqa: F401  starts PostgreSQL and Valkey, and says in the environment where they are
from benchmarks.machine import RESULTS, cpu_kind, describe, table, write_suite
from benchmarks.pages.__main__ import start_django

BAR_MS = 20.0
# Below these the search got worse: the columns of the fused method.
LEAST = {"paraphrase": 0.85, "name": 1.0, "typo": 1.0, "beginning": 1.0}


def main() -> int:
    """Measure, print tables, write `search.json`; return 1 if recall or time misses its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listings", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    about = describe()
    os.environ["SEARCH_ENCODER"] = ""
    start_django()

    from benchmarks.search import data, market, methods
    from marketplace.catalog.search.embedding import embed_listings
    from marketplace.catalog.search.meaning import meaning

    meaning.warm_up(wait=True)
    if meaning.why_not:
        raise SystemExit(f"no encoder: {meaning.why_not}")
    offers, questions = data.read()
    market.list_offers(offers)
    started = time.perf_counter()
    embed_listings(seconds=600)
    per_listing = round((time.perf_counter() - started) * 1e3 / len(offers), 1)
    recall = {name: methods.recall(questions, method) for name, method in methods.METHODS.items()}
    print(f"{'recall in the first five':<34}" + "".join(f"{kind:>12}" for kind in data.KINDS))
    for name, row in recall.items():
        print(f"{name:<34}" + "".join(f"{row[kind]:>12.2f}" for kind in data.KINDS), flush=True)

    texts = [f"{question.text} {number}" for number in range(10) for question in questions]
    times, buffers = _times(offers, texts[: options.requests + 3], options.listings)
    rows = [[name, *(f"{row[kind]:.2f}" for kind in data.KINDS)] for name, row in recall.items()]
    parts = [
        table(["recall in the first five", *data.KINDS], rows),
        f"{options.listings:,} listings, {options.requests} new queries.",
        table(["", "p50 ms", "p95 ms"], [[name, row["p50_ms"], row["p95_ms"]] for name, row in times.items()]),
        f"The statement reads {buffers['p50']:,} pages of 8 KiB (p50), {buffers['most']:,} at most; its bar is "
        f"{BAR_MS:.0f} ms at p95. Embedding a listing takes {per_listing} ms.",
    ]
    print(write_suite(options.out or RESULTS / cpu_kind(about), "search", {"machine": about}, parts))
    best = recall["all three, fused"]
    slow = times["the statement"]["p95_ms"] > BAR_MS
    return int(slow or any(best[kind] < least for kind, least in LEAST.items()))


def _times(offers: Sequence[Any], texts: Sequence[str], listings: int) -> tuple[dict[str, Any], dict[str, int]]:
    """Return times by what was asked, and the pages that the statement reads."""
    from django.conf import settings
    from django.test import Client

    from benchmarks.search import market
    from marketplace.catalog import selectors
    from marketplace.catalog.search import Filters, encoder, find
    from marketplace.catalog.search.meaning import meaning

    administrator = psycopg.connect(os.environ["DATABASE_ADMIN_URL"], autocommit=True)
    loaded = encoder.load("")
    encoded = [loaded.encode(f"{offer.title}. {offer.summary}") for offer in offers]
    market.list_generated(market.generate(offers, listings - len(offers)), encoded, administrator)
    client, host = Client(), settings.ALLOWED_HOSTS[0]
    asked: dict[str, Callable[[str], Any]] = {
        "encoding": meaning.vector_of,
        "the statement": find,
        "the statement, one industry": lambda text: find(text, Filters(industry="finance")),
        "the selector, 24 listings": lambda text: list(
            selectors.published_models(query=text, ordering="relevance")[:24]
        ),
        "the API": lambda text: client.get("/api/v1/models", {"q": text, "limit": 24}, headers={"host": host}),
        "the catalogue's results": lambda text: client.get(
            "/models/", {"q": text}, headers={"host": host, "hx-request": "true"}
        ),
    }
    times = {name: _measure(ask, texts) for name, ask in asked.items()}
    for name, row in times.items():
        print(f"{name:<34} p50 {row['p50_ms']:6.1f} ms   p95 {row['p95_ms']:6.1f} ms", flush=True)
    buffers = sorted(_pages(find, text) for text in texts[:50])
    found = {"p50": buffers[len(buffers) // 2], "most": buffers[-1]}
    print(f"pages of 8 KiB that the statement reads: p50 {found['p50']}, most {found['most']}")
    return times, found


def _measure(ask: Callable[[str], Any], texts: Sequence[str]) -> dict[str, float]:
    """Return the times of all texts but the first three, which fill caches."""
    taken = []
    for text in texts:
        start = time.perf_counter()
        ask(text)
        taken.append((time.perf_counter() - start) * 1e3)
    taken = taken[3:]
    return {"p50_ms": round(statistics.median(taken), 1), "p95_ms": round(statistics.quantiles(taken, n=20)[-1], 1)}


def _pages(find: Callable[[str], Any], text: str) -> int:
    from django.db import connection

    pages = 0

    def explain(execute: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
        nonlocal pages
        if "UNION ALL" in sql:
            with context["connection"].cursor() as cursor:
                cursor.execute(
                    f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) /* plan */ {sql.replace('UNION ALL', 'UNION  ALL')}",
                    parameters,
                )
                (plan,) = cursor.fetchone()
            plan = json.loads(plan) if isinstance(plan, str) else plan
            pages = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(explain):
        find(text)
    return pages


if __name__ == "__main__":
    raise SystemExit(main())
