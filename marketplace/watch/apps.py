"""Django app declaration."""

from django.apps import AppConfig


class WatchConfig(AppConfig):
    name = "marketplace.watch"
    label = "watch"
