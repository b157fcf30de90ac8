"""Django app declaration."""

from django.apps import AppConfig


class TeamsConfig(AppConfig):
    name = "marketplace.teams"
    label = "teams"
