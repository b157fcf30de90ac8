"""The cost of the catalogue's order: an index gives it, so a page reads the rows that it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.models import QuerySet

from marketplace.catalog import selectors
from marketplace.catalog.models import Model
from marketplace.catalog.search import Filters
from marketplace.standing.services import rank_models
from tests.database import as_superuser
from tests.marketplace.catalog.factories import make_base, make_organization

MANY = """
INSERT INTO catalog_model (id, organization_id, slug, kind, base_model_id, title, summary, card_markdown, industry,
    tags, visibility, example_messages, created_at, updated_at)
SELECT gen_random_uuid(), %(organization)s, 'm-' || n, 'adapter', %(base)s, 'Model ' || n, '', '',
    (ARRAY['finance', 'health', 'law', 'retail'])[1 + n %% 4], '{}', 'public', '[]', now(), now()
FROM generate_series(1, 3000) AS n;
INSERT INTO catalog_version (id, model_id, number, state, changelog, package_size, report, state_changed_at,
    published_at, created_at)
SELECT gen_random_uuid(), id, 1, 'published', '', 0, '{}', now(), now() - interval '60 days', now() FROM catalog_model;
ANALYZE;
"""


@pytest.fixture
def many_models(db: None) -> None:
    with as_superuser(), connection.cursor() as cursor:
        cursor.execute(MANY % {"organization": f"'{make_organization().pk}'", "base": f"'{make_base().pk}'"})
    assert rank_models() == 3_000
    with as_superuser(), connection.cursor() as cursor:
        cursor.execute("ANALYZE catalog_standing")


def nodes(models: QuerySet[Model]) -> Iterator[dict[str, Any]]:
    """Yield each step of the plan with which PostgreSQL read these models."""
    statement, parameters = models.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
        (found,) = cursor.fetchone()
    waiting = [(json.loads(found) if isinstance(found, str) else found)[0]["Plan"]]
    while waiting:
        node = waiting.pop()
        waiting += node.get("Plans", [])
        yield node


def test_a_page_by_standing_reads_the_rows_that_it_shows(many_models: None) -> None:
    for page in (
        selectors.published_models()[:24],
        selectors.published_models(filters=Filters(industry="health"))[:24],
    ):
        plan = list(nodes(page))
        assert "catalog_standing_place" in {node.get("Index Name") for node in plan}
        read = max(node["Actual Rows"] * node["Actual Loops"] for node in plan)
        assert read <= 24 * 4 * 3, "an industry is a quarter of the models"


def test_the_shelf_reads_its_own_rows(many_models: None) -> None:
    plan = list(nodes(selectors.new_models(limit=3)))
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in plan) <= 3
