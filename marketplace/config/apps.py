"""Django app declaration of the project itself."""

from __future__ import annotations

from django.apps import AppConfig


class ConfigConfig(AppConfig):
    name = "marketplace.config"
    label = "config"

    def ready(self) -> None:
        """Make the project's Celery app the current one, so that `shared_task`s of any process go to its broker."""
        from marketplace.config import celery  # noqa: F401
