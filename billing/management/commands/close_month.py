"""`manage.py close_month 2026-10 --papers DIR`: close the books of a month, issue its papers, write them to files.

A command that was killed is run again: a closed month stays closed, and each paper is issued once. With `--draft` the
month stays open, and what its papers would say now is written.
"""

from __future__ import annotations

import getpass
from datetime import date
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.account_statements import is_closed, platform_statements
from billing.errors import MonthNotClosable
from billing.models import Paper
from billing.papers.credit_notes import issue_due_credit_notes
from billing.papers.csv_file import csv_file
from billing.papers.issue import csv_of, pdf_of
from billing.papers.monthly import drafts_of_month, issue_month
from billing.papers.pdf import pdf_file
from billing.papers.profiles import platform_party
from billing.papers.receipts import issue_due_receipts
from billing.papers.statements import platform_statement
from billing.periods import close_month, post_entries


class Command(BaseCommand):
    """Close one month, print the platform's statement of it, and issue its invoices and statements of earnings."""

    help = "Close the books of a month that is over. Refused while an incident is open."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the month, a name for the record and a folder."""
        parser.add_argument("month", help="the month (UTC) as YYYY-MM")
        parser.add_argument("--by", default="", help="who closes it (default: the name of this login)")
        parser.add_argument("--draft", action="store_true", help="close nothing: show the open month as it is now")
        parser.add_argument("--papers", type=Path, help="write the month's papers into this folder, as PDF and CSV")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run."""
        try:
            month = date.fromisoformat(f"{options['month']}-01")
        except ValueError:
            raise CommandError(f"{options['month']} is not a month: write YYYY-MM, such as 2026-10") from None
        post_entries()
        if options["draft"]:
            self._draft(month, options["papers"])
            return
        if not (options["papers"] and is_closed(month)):  # closed before: its papers are issued and written again
            try:
                close_month(month=month, closed_by=options["by"] or getpass.getuser())
            except MonthNotClosable as error:
                raise CommandError(str(error)) from None
        self._print(month)
        if platform_party() is None:
            self.stdout.write("No papers: the organization intarsia has no billing profile, which they must name.")
            return
        while issue_due_receipts() or issue_due_credit_notes():
            pass
        self.stdout.write(f"{issue_month(month)} invoices and statements of earnings are issued.")
        if options["papers"]:
            self.stdout.write(f"{_write(month, options['papers'])} files are in {options['papers']}.")

    def _draft(self, month: date, folder: Path | None) -> None:
        if is_closed(month):
            raise CommandError(f"{month:%Y-%m} is closed: it has papers, not drafts")
        self._print(month)
        if folder is not None:
            try:
                self.stdout.write(f"{_write_drafts(month, folder)} drafts are in {folder}.")
            except LookupError as error:
                raise CommandError(str(error)) from None

    def _print(self, month: date) -> None:
        state = "closed" if is_closed(month) else "open"
        self.stdout.write(f"{month:%Y-%m} is {state}. Nano-dollars, all owners together:")
        for statement in platform_statements(month):
            self.stdout.write(
                f"  {statement.account_kind:20} opening {statement.opening_nano_usd:>20}"
                f"  closing {statement.closing_nano_usd:>20}"
            )
            for movement in statement.movements:
                self.stdout.write(f"    {movement.kind:18} {movement.amount_nano_usd:>28}  {movement.lines} entries")


def _write_drafts(month: date, folder: Path) -> int:
    """Write what the papers of an open month would say now; return how many files there are."""
    folder.mkdir(parents=True, exist_ok=True)
    files = 0
    for draft in drafts_of_month(month):
        path = folder / f"draft-{draft.kind}-{draft.organization.slug}-{month:%Y-%m}"
        path.with_suffix(".pdf").write_bytes(pdf_file(draft.document, number="", issued_on=None))
        path.with_suffix(".csv").write_text(csv_file(draft.document, number="", issued_on=None), newline="")
        files += 2
    return files


def _write(month: date, folder: Path) -> int:
    """Write the platform's statement and every paper of the month; return how many files there are."""
    folder.mkdir(parents=True, exist_ok=True)
    document = platform_statement(month)
    files = 2
    (folder / f"platform-{month:%Y-%m}.pdf").write_bytes(pdf_file(document, number="", issued_on=None))
    (folder / f"platform-{month:%Y-%m}.csv").write_text(csv_file(document, number="", issued_on=None), newline="")
    for paper in Paper.objects.filter(period=month).order_by("series", "number").iterator(chunk_size=100):
        (folder / f"{paper.name}.pdf").write_bytes(pdf_of(paper))
        (folder / f"{paper.name}.csv").write_text(csv_of(paper), newline="")
        files += 2
    return files
