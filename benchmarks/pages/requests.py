"""The pages and API reads that are measured, by whom they are read, and the sums from predictions beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from django.conf import settings
from django.db import connection
from django.test import Client

from benchmarks.pages.books import Market
from marketplace.accounts.models import User


@dataclass(frozen=True)
class Page:
    """An address, and who reads it."""

    address: str
    reader: Literal["seller", "buyer", "stranger"]


PAGES = {
    "overview of a customer": Page("/dashboard/", "buyer"),
    "overview of a creator": Page("/dashboard/", "seller"),
    "usage, 7 days": Page("/dashboard/usage?days=7", "buyer"),
    "usage, 30 days": Page("/dashboard/usage", "buyer"),
    "usage, 90 days": Page("/dashboard/usage?days=90", "buyer"),
    "earnings": Page("/dashboard/earnings", "seller"),
    "my models": Page("/dashboard/models", "seller"),
    "home": Page("/", "stranger"),
    "catalogue": Page("/models/", "stranger"),
    "catalogue, an industry": Page("/models/?industry=health", "stranger"),
    "catalogue, a search": Page("/models/?q=kind42", "stranger"),
    "model": Page("/models/creator/model-00042", "stranger"),
    "API: models by standing": Page("/api/v1/models?order=ranked", "stranger"),
    "API: usage by day": Page("/api/v1/usage/summary?group_by=day", "buyer"),
    "API: usage by model": Page("/api/v1/usage/summary?group_by=model", "buyer"),
    "API: usage by day, model and key": Page("/api/v1/usage/summary", "buyer"),
    "API: predictions": Page("/api/v1/usage", "buyer"),
    "API: earnings": Page("/api/v1/earnings", "seller"),
}
SUMS = {
    "usage by model, 30 days": """
        SELECT model_name, count(*), sum(prompt_tokens), sum(completion_tokens), sum(cost_nano_usd) FROM billing_usage
        WHERE organization_id = %(customer)s AND created_at >= current_date - 29 GROUP BY model_name
    """,
    "earnings by model": """
        SELECT model_name, count(*), count(DISTINCT organization_id), sum(completion_tokens), sum(cost_nano_usd)
        FROM billing_usage WHERE creator_organization_id = %(creator)s GROUP BY model_name
    """,
}


class Visitor:
    """People who are signed in, each with a browser."""

    def __init__(self, market: Market) -> None:
        self._host = settings.ALLOWED_HOSTS[0]
        self._clients = {"seller": self._client(market.seller), "buyer": self._client(market.buyer)}
        self._clients["stranger"] = Client()

    def visit(self, page: Page) -> int:
        """Read a page to its end; return how many queries it made. Raises RuntimeError unless the answer is 200."""
        queries = 0

        def count(execute, sql, params, many, context):  # type: ignore[no-untyped-def]
            nonlocal queries
            queries += 1
            return execute(sql, params, many, context)

        with connection.execute_wrapper(count):
            answer = self._clients[page.reader].get(page.address, headers={"host": self._host})
        if answer.status_code != 200 or not answer.content:
            raise RuntimeError(f"{page.address} answers {answer.status_code}")
        return queries

    def _client(self, user: User) -> Client:
        client = Client()
        client.force_login(user)
        return client
