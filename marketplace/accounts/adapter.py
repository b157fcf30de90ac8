"""allauth's hooks: sign-up with a personal organization, mails with the platform's own address, fresh sessions.

The address of the sign-up form may name the organization that refers the new one: `?ref=slug`.
"""

from __future__ import annotations

import logging
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.models import EmailConfirmation
from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from marketplace.accounts import features, selectors, services, sign_in
from marketplace.accounts.freshness import is_fresh
from marketplace.accounts.models import User

logger = logging.getLogger(__name__)


class AccountAdapter(DefaultAccountAdapter):
    """Creates user and organization in one transaction: neither exists without the other."""

    error_messages = DefaultAccountAdapter.error_messages | {
        "too_many_login_attempts": "Too many wrong passwords for this account. Wait a quarter of an hour, sign in "
        "with a passkey, or set a new password: the link that we mail you lets you in at once."
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Return whether new accounts are made; the page says so where they are not."""
        return features.is_on("sign-ups")

    def save_user(self, request: HttpRequest, user: User, form: Any, commit: bool = True) -> User:
        """Fill `user` from the sign-up form and, with `commit`, save it together with its organization."""
        with transaction.atomic():
            saved: User = super().save_user(request, user, form, commit)
            if commit:
                self.give_organization(request, saved)
        return saved

    def give_organization(self, request: HttpRequest, user: User) -> None:
        """Create the organization that every user starts with."""
        referrer = selectors.organization_named(request.GET.get("ref", ""))
        services.create_personal_organization(user=user, referred_by=referrer)

    def is_reauthentication_required(self, *, app: str, **_: Any) -> bool:
        """Apply the platform's own rule to allauth's pages too: a sign-in within the last minutes counts."""
        return not is_fresh(self.request)

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Refuse a password from a place that tried too many, before it is looked at."""
        self._place = sign_in.place_of(request, credentials.get("email", ""))
        if not sign_in.is_allowed(self._place):
            raise self.validation_error("too_many_login_attempts")

    def authenticate(self, request: HttpRequest, **credentials: Any) -> Any:
        """Return the user whom the credentials prove, or None; only wrong ones stay counted."""
        user = super().authenticate(request, **credentials)
        if user:
            sign_in.forget(self._place)
        return user

    def post_login(self, request: HttpRequest, user: User, **how: Any) -> HttpResponse:
        """Know this device from now on: a stranger's wrong passwords never lock it out."""
        response: HttpResponse = super().post_login(request, user, **how)
        sign_in.remember_device(request, response, user)
        return response

    def _delete_login_attempts_cached_email(self, request: HttpRequest, **credentials: Any) -> None:
        """Start anew after a password that was set by a mailed link (allauth calls it then)."""
        sign_in.forget_all(sign_in.place_of(request, credentials.get("email", "")))

    def get_email_confirmation_url(self, request: HttpRequest, emailconfirmation: EmailConfirmation) -> str:
        """Return the link that verifies an address, below PUBLIC_URL whatever host the request named."""
        return _public(reverse("account_confirm_email", args=[emailconfirmation.key]))

    def get_reset_password_from_key_url(self, key: str) -> str:
        """Return the link that resets a password, below PUBLIC_URL whatever host the request named."""
        # allauth joins user and key in one argument of the route.
        path = reverse("account_reset_password_from_key", kwargs={"uidb36": "UID", "key": "KEY"})
        return _public(path.replace("UID-KEY", key))

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """Send one mail; where the mail server fails, the page says so and the request goes on."""
        try:
            super().send_mail(template_prefix, email, {**context, "public_url": settings.PUBLIC_URL})
        except OSError as error:  # smtplib's errors are OSErrors
            logger.error("a mail (%s) was not sent: %s", template_prefix, type(error).__name__)
            messages.error(self.request, "The mail could not be sent just now. Ask for it again in a few minutes.")


def _public(path: str) -> str:
    return f"{settings.PUBLIC_URL}{path}"
