"""Django app declaration, and the composition root: what the apps below need from each other is connected here."""

from __future__ import annotations

from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "marketplace.api"
    label = "api"

    def ready(self) -> None:
        """Open billing accounts with every organization; send shared tasks to the project's Celery app."""
        from marketplace.accounts.onboarding import register_organization_opener
        from marketplace.api.onboarding import open_billing_accounts
        from marketplace.config import celery  # noqa: F401  importing it makes it the current app

        register_organization_opener(open_billing_accounts)
