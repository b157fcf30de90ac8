"""`manage.py add_base_model`: let replicas serve a base model, and creators build adapters on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from marketplace.accounts.errors import Refusal
from marketplace.catalog import services as catalog
from marketplace.catalog.models import BaseLine, BaseModel
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
        directory, line = options["folder"].resolve(), options["line"]
        if bool(line) != (options["reference"] or options["checkpoint"]):
            raise CommandError("--line goes with --reference or --checkpoint, and they with it")
        try:
            computed = ComputedIn.of_flags(**{key: options[key] for key in ("dtype", "kv_dtype", "adapter_dtype")})
            folder = catalog.read_base_folder(directory, computed, precision=options["precision"])
            made = "-".join(str(computed).replace(",", "").lower().split())
            name = options["name"] or "-".join(part for part in (directory.name, made) if part)
            if options["checkpoint"]:
                base = catalog.add_checkpoint(line=_line(line), name=name, folder=folder)
            else:
                base = _reference(line or name, name, folder)
        except (Refusal, ProtocolError) as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{base.name}  {base.fingerprint}")


def _line(name: str) -> BaseLine:
    line = BaseLine.objects.filter(name=name).first()
    if line is None:
        raise CommandError(f"there is no line {name}: its first checkpoint is added with --reference")
    return line


def _reference(line: str, name: str, folder: catalog.BaseFolder) -> BaseModel:
    """Register a line with its reference. Raises CommandError if the line has another one, or the checkpoint a line."""
    present = BaseModel.objects.filter(line__name=line, is_reference=True).first()
    if present is not None and present.fingerprint != folder.fingerprint and line != name:
        raise CommandError(f"the line {line} has a reference, {present.name}; add this one with --checkpoint")
    known = BaseModel.objects.select_related("line").filter(fingerprint=folder.fingerprint).first()
    if known is not None and not known.is_reference:
        raise CommandError(f"this checkpoint is of the line {known.line.name} already")
    return catalog.register_reference(name=name, line=line, folder=folder)
