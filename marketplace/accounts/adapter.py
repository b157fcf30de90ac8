"""allauth's hook into sign-up by form: a new user gets a personal organization.

The address of the form may name the organization that refers the new one: `?ref=slug`.
"""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.db import transaction
from django.http import HttpRequest

from marketplace.accounts import selectors, services
from marketplace.accounts.models import User


class AccountAdapter(DefaultAccountAdapter):
    """Creates user and organization in one transaction: neither exists without the other."""

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
