"""`manage.py add_base_model`: let replicas serve a base model, and creators build adapters on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.accounts.errors import Refusal
from marketplace.catalog import services as catalog
from protocol.checkpoints import ComputedIn
from protocol.errors import ProtocolError


class Command(BaseCommand):
    """Register the base model in a Hugging Face folder. Replicas never register one themselves."""

    help = "Register the base model in a Hugging Face folder (read, not copied): a line of its own, or a checkpoint."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the folder, its place in a line, and the flags that its replicas start with."""
        parser.add_argument("folder", type=Path, help="folder with config.json and the weights")
        parser.add_argument("--name", default="", help="its name (default: the folder's, and what replicas make of it)")
        parser.add_argument("--line", default="", help="the base line (default: one of its own, by its name)")
        place = parser.add_mutually_exclusive_group()
        place.add_argument("--reference", action="store_true", help="it begins the line, and adapters are made for it")
        place.add_argument("--checkpoint", action="store_true", help="it joins the line, to be measured there")
        parser.add_argument("--precision", default="", help="its precision in words (default: what config.json says)")
        parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "int8"), default="auto")
        parser.add_argument("--kv-dtype", choices=("auto", "bfloat16", "int8", "fp8"), default="auto")
        parser.add_argument("--adapter-dtype", choices=("auto", "int8"), default="auto")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; raises CommandError."""
        if bool(options["line"]) != (options["reference"] or options["checkpoint"]):
            raise CommandError("--line goes with --reference or --checkpoint, and they with it")
        try:
            base, _ = catalog.add_base(
                options["folder"],
                name=options["name"],
                line=options["line"],
                as_checkpoint=options["checkpoint"],
                computed=ComputedIn.of_flags(**{key: options[key] for key in ("dtype", "kv_dtype", "adapter_dtype")}),
                precision=options["precision"],
            )
        except (Refusal, ProtocolError) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{base.name}  {base.fingerprint}")
