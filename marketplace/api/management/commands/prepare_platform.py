"""`manage.py prepare_platform`: schema, platform keys, sample accounts, the base listing and the local replica's
credential, in one process.

Four commands in one because each start of Django costs a second; all are idempotent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    help = "Migrate, make the platform's keys, create the sample accounts, and allow the local replica to enrol."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--base-dir", required=True, help="Hugging Face folder of the base model")
        parser.add_argument("--credentials", required=True, help="JSON file: role -> {email, password}")
        parser.add_argument("--replica", required=True, help="name of the replica on this machine")
        parser.add_argument("--replica-credential", required=True, help="file for its credential, until it is enrolled")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", interactive=False, verbosity=0)
        call_command("bootstrap_vault")
        call_command("seed_samples", base_dir=options["base_dir"], credentials=options["credentials"])
        call_command(
            "issue_replica_credential",
            options["replica"],
            base=Path(options["base_dir"]).resolve().name,
            host="127.0.0.1",
            credential_file=Path(options["replica_credential"]),
            unless_enrolled=True,
        )
