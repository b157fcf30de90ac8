"""`manage.py prepare_platform`: schema, platform keys, sample accounts and the base listing, in one process.

Three commands in one because each start of Django costs a second; all are idempotent.
"""

from __future__ import annotations

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    help = "Migrate, make the platform's keys, and create the sample accounts."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--base-dir", required=True, help="Hugging Face folder of the base model")
        parser.add_argument("--credentials", required=True, help="JSON file: role -> {email, password}")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", interactive=False, verbosity=0)
        call_command("bootstrap_vault")
        call_command("seed_samples", base_dir=options["base_dir"], credentials=options["credentials"])
