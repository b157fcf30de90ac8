"""`manage.py publish_receipts 2026-03`: bring the daily trees of a month up to date, and publish their roots."""

from __future__ import annotations

from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.receipts.services import publish_month
from marketplace.vault.errors import NotBootstrapped


class Command(BaseCommand):
    """Publish the days of one month that the hourly task has missed."""

    help = "Publish the receipts of a month that was missed, so that its single predictions may be dropped."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the month."""
        parser.add_argument("month", help="the month (UTC) as YYYY-MM")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run. A command that was killed is run again: what is published stays."""
        try:
            month = date.fromisoformat(f"{options['month']}-01")
        except ValueError:
            raise CommandError(f"{options['month']} is not a month: write YYYY-MM, such as 2026-03") from None
        try:
            heads = publish_month(month)
        except NotBootstrapped:
            raise CommandError("there is no receipt key yet: run `manage.py bootstrap_vault`") from None
        for head in heads:
            self.stdout.write(f"{head.day}: head {head.sequence} covers {head.size} receipts")
        self.stdout.write(f"{len(heads)} roots are published.")
