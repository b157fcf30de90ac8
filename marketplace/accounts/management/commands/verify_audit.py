"""`manage.py verify_audit [SLUG]`: compare the audit log with its seals."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.accounts.audit_seals import verify
from marketplace.accounts.models import Organization


class Command(BaseCommand):
    """Verify one organization's log, or all of them and the platform's chain."""

    help = "Compare the audit log with its seals; exit with an error if a sealed day was changed."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the organization."""
        parser.add_argument("organization", nargs="?", help="slug; without it every log and the platform's chain")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; raises CommandError for an unknown organization, and for each day that does not fit its seal."""
        organization = None
        if options["organization"]:
            organization = Organization.objects.filter(slug=options["organization"]).first()
            if organization is None:
                raise CommandError("there is no such organization")
        broken = verify(organization=organization)
        if broken:
            days = "\n".join(f"{one.organization_id or 'the platform'} {one.day}" for one in broken)
            raise CommandError(f"these days do not fit their seals:\n{days}")
        self.stdout.write("every sealed day fits its seal")
