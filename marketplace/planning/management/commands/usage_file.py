"""`manage.py usage_file`: the usage that plans of the fleet are made from, as JSON."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from billing.rollups.services import roll_up as count_usage
from marketplace.planning.usage import usage_file
from marketplace.watch.refusals import count_refusals
from marketplace.watch.rollup import roll_up


class Command(BaseCommand):
    """Print the usage file, after everything that is in the books is counted."""

    help = "Print the usage by hour and base that `python -m capacity plan --usage` takes; it names no customer."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the flags."""
        parser.add_argument(
            "--with-this-hour", action="store_true", help="as if it was over: for a platform that is new"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run."""
        count_refusals()
        count_usage()
        roll_up()
        self.stdout.write(json.dumps(usage_file(with_this_hour=options["with_this_hour"])))
