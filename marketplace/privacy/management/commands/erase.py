"""`manage.py erase user EMAIL`, `manage.py erase organization SLUG`: for requests that come by letter."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import Organization, User
from marketplace.privacy import services


class Command(BaseCommand):
    """Erase a person or an organization; the books stay whole."""

    help = "Erase a person (by e-mail) or an organization (by slug); the books stay whole."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the kind of subject and its name."""
        parser.add_argument("subject", choices=["user", "organization"])
        parser.add_argument("name", help="e-mail or slug")
        parser.add_argument("--give-up-balance", action="store_true", help="leave a balance of the organization")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; raises CommandError for an unknown subject, and for one that something still needs."""
        name = options["name"]
        try:
            if options["subject"] == "user":
                user = User.objects.filter(email__iexact=name).first()
                if user is None:
                    raise CommandError("there is no such user")
                erasure = services.erase_user(user=user, by=None)
            else:
                organization = Organization.objects.filter(slug=name).first()
                if organization is None:
                    raise CommandError("there is no such organization")
                erasure = services.erase_organization(
                    organization=organization, by=None, give_up=options["give_up_balance"]
                )
        except Refusal as refusal:
            raise CommandError(refusal.message) from None
        self.stdout.write(f"erased: {erasure.subject} {erasure.subject_id}")
