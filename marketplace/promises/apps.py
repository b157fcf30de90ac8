"""Django app declaration."""

from django.apps import AppConfig


class PromisesConfig(AppConfig):
    name = "marketplace.promises"
    label = "promises"
