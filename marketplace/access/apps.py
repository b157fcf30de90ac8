"""Django app declaration."""

from django.apps import AppConfig


class AccessConfig(AppConfig):
    name = "marketplace.access"
    label = "access"
