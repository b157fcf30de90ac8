"""allauth's hook into sign-up, for those who were invited: they join that organization instead of getting their own."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest

from marketplace.accounts.adapter import AccountAdapter
from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import User
from marketplace.teams import invites

SESSION_KEY = "invite"  # the token of a link that was opened before signing up


class TeamAccountAdapter(AccountAdapter):
    """Lets a new user in by the invite that their session has."""

    def give_organization(self, request: HttpRequest, user: User) -> None:
        """Join by invite, or else create the organization that every user starts with."""
        token = request.session.pop(SESSION_KEY, "")
        try:
            joined = invites.accept(token=token, user=user)
        except Refusal:  # none, too old, or for another address
            super().give_organization(request, user)
        else:
            messages.success(request, f"You joined {joined.organization.name}, as {joined.role}.")
            self.stash_verified_email(request, user.email)  # the link proves it: no mail asks for it again


def remember(request: HttpRequest, *, token: str) -> None:
    """Keep the invite for the sign-up that follows."""
    request.session[SESSION_KEY] = token
