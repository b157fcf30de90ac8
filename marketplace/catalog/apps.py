"""Django app declaration."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.apps import AppConfig


class CatalogConfig(AppConfig):
    name = "marketplace.catalog"
    label = "catalog"

    def ready(self) -> None:
        """Let papers print the numbers of versions: billing knows their ids alone."""
        from billing.papers.consumption import use_version_numbers

        use_version_numbers(_version_numbers)


def _version_numbers(ids: Iterable[UUID]) -> dict[UUID, int]:
    from marketplace.catalog.models import Version

    return dict(Version.objects.filter(pk__in=ids).values_list("pk", "number"))
