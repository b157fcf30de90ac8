"""The app's configuration."""

from django.apps import AppConfig


class OperationsConfig(AppConfig):
    name = "marketplace.operations"
    label = "operations"
    default_auto_field = "django.db.models.BigAutoField"
