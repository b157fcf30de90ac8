"""`manage.py add_base_model`: let replicas serve a base model, and creators build adapters on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.accounts.errors import Refusal
from marketplace.catalog import services as catalog


class Command(BaseCommand):
    """Register the base model in a Hugging Face folder. Replicas never register one themselves."""

    help = "Register the base model in a Hugging Face folder (read, not copied)."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the folder and a name."""
        parser.add_argument("folder", type=Path, help="folder with config.json and the weights")
        parser.add_argument("--name", default="", help="its name (default: the folder's)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; raises CommandError."""
        folder = options["folder"].resolve()
        try:
            base = catalog.register_base_directory(name=options["name"] or folder.name, directory=folder)
        except Refusal as error:
            raise CommandError(error.message) from None
        self.stdout.write(f"{base.name}  {base.fingerprint}")
