"""Django app declaration."""

from django.apps import AppConfig


class AlertsConfig(AppConfig):
    name = "marketplace.alerts"
    label = "alerts"
