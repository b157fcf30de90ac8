"""`manage.py clear_incident ID --user EMAIL --reason TEXT`: resolve an incident, so that payouts leave again."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.errors import BillingError
from billing.incidents import clear_incident
from billing.models import Incident
from marketplace.accounts.models import User


class Command(BaseCommand):
    """List the open incidents, or resolve one with a code of an authenticator app."""

    help = "Resolve an incident. Asks for a code of the authenticator app; without an id, lists what is open."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the incident, who resolves it, and why."""
        parser.add_argument("incident", nargs="?", type=int, help="its number, as this command lists it")
        parser.add_argument("--user", default="", help="e-mail address of a member of staff")
        parser.add_argument("--reason", default="", help="what was found; the incident keeps it")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run."""
        if options["incident"] is None:
            for incident in Incident.objects.filter(resolved_at=None).order_by("pk"):
                self.stdout.write(f"{incident.pk:>8}  {incident.kind}  {incident.subject}  {incident.detail}")
            return
        user = User.objects.filter(email__iexact=options["user"]).first()
        if user is None:
            raise CommandError("--user is the e-mail address of a member of staff")
        # Typed, not an argument: other users of the machine see arguments.
        code = getpass.getpass("Code of the authenticator app: ")
        try:
            clear_incident(incident_id=options["incident"], user=user, code=code, reason=options["reason"])
        except (BillingError, ValueError) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"Incident {options['incident']} is resolved.")
