"""`manage.py close_month 2026-10`: close the books of a month; its statements never change afterwards."""

from __future__ import annotations

import getpass
from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.account_statements import platform_statements
from billing.errors import MonthNotClosable
from billing.periods import close_month, post_entries


class Command(BaseCommand):
    """Close one month and print the platform's statement of it."""

    help = "Close the books of a month that is over. Refused while an incident is open."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the month and a name for the record."""
        parser.add_argument("month", help="the month (UTC) as YYYY-MM")
        parser.add_argument("--by", default="", help="who closes it (default: the name of this login)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run."""
        try:
            month = date.fromisoformat(f"{options['month']}-01")
        except ValueError:
            raise CommandError(f"{options['month']} is not a month: write YYYY-MM, such as 2026-10") from None
        post_entries()
        try:
            close_month(month=month, closed_by=options["by"] or getpass.getuser())
        except MonthNotClosable as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{month:%Y-%m} is closed. Nano-dollars, all owners together:")
        for statement in platform_statements(month):
            self.stdout.write(
                f"  {statement.account_kind:20} opening {statement.opening_nano_usd:>20}"
                f"  closing {statement.closing_nano_usd:>20}"
            )
            for movement in statement.movements:
                self.stdout.write(f"    {movement.kind:18} {movement.amount_nano_usd:>28}  {movement.lines} entries")
