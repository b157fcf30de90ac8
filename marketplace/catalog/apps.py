"""Django app declaration."""

from django.apps import AppConfig


class CatalogConfig(AppConfig):
    name = "marketplace.catalog"
    label = "catalog"
