"""The app's configuration."""

from django.apps import AppConfig


class PlanningConfig(AppConfig):
    name = "marketplace.planning"
    label = "planning"
    default_auto_field = "django.db.models.BigAutoField"
