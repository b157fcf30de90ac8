"""`manage.py export_organization SLUG FILE`: a copy of everything kept of an organization, of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.accounts.models import Organization
from marketplace.privacy.export import write_organization_copy


class Command(BaseCommand):
    """Write the ZIP that the page "Your data" offers, without its limit of size."""

    help = "Write a ZIP with everything that the platform keeps of an organization."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the organization and the file."""
        parser.add_argument("organization", help="its slug")
        parser.add_argument("file", type=Path, help="must not exist yet")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; raises CommandError for an unknown organization or a file that is there."""
        organization = Organization.objects.filter(slug=options["organization"]).first()
        if organization is None:
            raise CommandError("there is no such organization")
        try:
            with options["file"].open("xb") as target:
                rows = write_organization_copy(organization, target)
        except OSError as error:
            raise CommandError(f"{options['file']}: cannot be written ({error.strerror})") from None
        self.stdout.write(f"{rows} rows written to {options['file']}")
