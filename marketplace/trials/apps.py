"""Django app declaration."""

from django.apps import AppConfig


class TrialsConfig(AppConfig):
    name = "marketplace.trials"
    label = "trials"
