"""Django app declaration."""

from django.apps import AppConfig


class ReceiptsConfig(AppConfig):
    name = "marketplace.receipts"
    label = "receipts"
