"""Django app declaration."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "marketplace.accounts"
    label = "accounts"

    def ready(self) -> None:
        """Have sign-ins noted, keys of sessions digested, and rows of other packages that carry authority sealed."""
        from allauth.account.models import EmailAddress
        from allauth.mfa.models import Authenticator

        from marketplace.accounts import freshness  # noqa: F401
        from marketplace.accounts.seals.beside import protect
        from marketplace.accounts.session_store import digest_keys

        digest_keys()
        protect(Authenticator, "user_id", "type", "data")
        protect(EmailAddress, "user_id", "email", "verified", "primary")
