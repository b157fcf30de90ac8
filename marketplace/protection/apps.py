"""Django app declaration."""

from django.apps import AppConfig


class ProtectionConfig(AppConfig):
    name = "marketplace.protection"
    label = "protection"
