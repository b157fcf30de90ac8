"""Django app declaration."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "marketplace.accounts"
    label = "accounts"

    def ready(self) -> None:
        """Have sign-ins noted."""
        from marketplace.accounts import freshness  # noqa: F401
