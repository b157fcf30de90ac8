"""`intarsia-admin base`: add, list and remove base models (docs/bases.md)."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from marketplace.catalog.base_inspection import FolderReport
    from marketplace.catalog.models import BaseModel

app = typer.Typer(no_args_is_help=True, help="Base models: what adapters are made for, and replicas serve.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class Failed(Exception):
    """A refusal of the platform, or a missing part of it; the message is for the person at the shell."""


class Dtype(StrEnum):
    """The `--dtype` of a replica."""

    AUTO, FLOAT32, BFLOAT16, INT8 = "auto", "float32", "bfloat16", "int8"


class KvDtype(StrEnum):
    """The `--kv-dtype` of a replica."""

    AUTO, BFLOAT16, INT8, FP8 = "auto", "bfloat16", "int8", "fp8"


class AdapterDtype(StrEnum):
    """The `--adapter-dtype` of a replica."""

    AUTO, INT8 = "auto", "int8"


@app.command()
def add(
    folder: Annotated[Path, typer.Argument(help="A Hugging Face folder: config.json, *.safetensors, tokenizer.json.")],
    name: Annotated[str, typer.Option(help="Its name; the folder's if left out.")] = "",
    line: Annotated[str, typer.Option(help="The base line; one of its own if left out.")] = "",
    reference: Annotated[bool, typer.Option("--reference", help="Begin the line: adapters are made for it.")] = False,
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="Join the line, in another precision.")] = False,
    precision: Annotated[str, typer.Option(help="Its precision in words; what config.json says if left out.")] = "",
    dtype: Annotated[Dtype, typer.Option(help="As its replicas start.")] = Dtype.AUTO,
    kv_dtype: Annotated[KvDtype, typer.Option(help="As its replicas start.")] = KvDtype.AUTO,
    adapter_dtype: Annotated[AdapterDtype, typer.Option(help="As its replicas start.")] = AdapterDtype.AUTO,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look at the folder, and add nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a base model's folder and register it, so that replicas may serve it. The folder is read, not copied.

    Example: intarsia-admin base add models/qwen3-4b
    """
    if bool(line) != (reference or checkpoint) or (reference and checkpoint):
        raise Failed("--line goes with --reference or with --checkpoint, and they with it")
    with _platform():
        from marketplace.catalog import services as catalog
        from marketplace.catalog.base_inspection import inspect_base_folder
        from protocol.checkpoints import ComputedIn

        if dry_run:
            _show(None, inspect_base_folder(folder.resolve()), as_json=as_json)
            return
        base, report = catalog.add_base(
            folder,
            name=name,
            line=line,
            as_checkpoint=checkpoint,
            computed=ComputedIn.of_flags(dtype=dtype.value, kv_dtype=kv_dtype.value, adapter_dtype=adapter_dtype.value),
            precision=precision,
        )
        _show(base, report, as_json=as_json)


@app.command("list")
def list_bases(as_json: AsJson = False) -> None:
    """Show every base line with its checkpoints, the versions for sale and the live replicas."""
    with _platform():
        from marketplace.operations.bases import lines

        found = [
            {
                "line": line.name,
                "checkpoint": one.checkpoint.name,
                "reference": one.checkpoint.is_reference,
                "precision": one.checkpoint.precision,
                "versions": line.versions if one.checkpoint.is_reference else one.cleared,
                "replicas": list(one.replicas),
                "fingerprint": one.checkpoint.fingerprint,
            }
            for line in lines()
            for one in line.checkpoints
        ]
    if as_json:
        typer.echo(json.dumps(found))
        return
    if not found:
        typer.echo("no base model yet: intarsia-admin base add FOLDER")
        return
    rows = [
        (
            str(one["line"]),
            f"{one['checkpoint']}{' (reference)' if one['reference'] else ''}",
            str(one["precision"]),
            str(one["versions"]),
            ", ".join(one["replicas"]) or "none",  # type: ignore[arg-type]  # a list of names
            str(one["fingerprint"])[:16],
        )
        for one in found
    ]
    _table(("line", "checkpoint", "precision", "versions", "replicas", "fingerprint"), rows)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Its name or its fingerprint.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove a base model that nothing uses: no model, no measured version, no replica. Files stay where they are.

    Example: intarsia-admin base remove qwen3-4b
    """
    if not yes:
        typer.confirm(f"Remove the base model {name}?", abort=True)
    with _platform():
        from marketplace.catalog import services as catalog

        base = catalog.remove_base(name)
    typer.echo(f"{base.name} is removed")


@contextmanager
def _platform() -> Iterator[None]:
    """Set up the platform, and turn its refusals into Failed."""
    try:
        import django
    except ImportError:
        raise Failed("this command needs the extra `web`: pip install 'intarsia[web]'") from None
    from marketplace.config.env import EnvError

    try:
        django.setup()
    except EnvError as error:
        raise Failed(str(error)) from None
    from django.db.utils import OperationalError

    from marketplace.accounts.errors import Refusal
    from protocol.errors import ProtocolError

    try:
        yield
    except (Refusal, ProtocolError) as error:
        raise Failed(str(error)) from None
    except OperationalError:
        raise Failed("the database of DATABASE_URL does not answer") from None


def _show(base: BaseModel | None, report: FolderReport, *, as_json: bool) -> None:
    if as_json:
        named: dict[str, Any] = {}
        if base is not None:
            named = {"name": base.name, "line": base.line.name, "fingerprint": base.fingerprint}
        typer.echo(json.dumps(named | dataclasses.asdict(report)))
        return
    facts = [
        ("family", report.family),
        ("layers", f"{report.layers} of {report.hidden_size:,}, {report.heads} heads, {report.kv_heads} for keys"),
        ("attention", report.attention),
        (
            "vocabulary",
            f"{report.vocabulary:,} tokens, head {'tied to the embedding' if report.tied else 'of its own'}",
        ),
        ("context", f"{report.context_length:,} tokens"),
        ("weights", f"{_size(report.weight_bytes)}, {report.parameters / 1e6:,.1f} M values"),
        ("KV cache", f"{_size(report.kv_bytes)} a token in 16 bits"),
        ("an adapter", f"{_size(report.adapter_bytes)} of rank 16 on every linear, in 16 bits"),
        ("chat", "has a template" if report.has_chat_template else "no template: completions alone"),
    ]
    if base is None:
        typer.echo("it can be served")
    else:
        typer.echo(f"{base.name}: {'reference' if base.is_reference else 'checkpoint'} of the line {base.line.name}")
        facts.append(("fingerprint", base.fingerprint))
    for title, value in facts:
        typer.echo(f"  {title:<12}{value}")
    if base is not None:
        typer.echo(f"next: python manage.py issue_replica_credential NAME --base {base.name} --host HOST")


def _size(count: int) -> str:
    power = 3 if count >= 1 << 30 else 2 if count >= 1 << 20 else 1
    return f"{count / 1024**power:,.1f} {('KiB', 'MiB', 'GiB')[power - 1]}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*row)
    # Wide enough that nothing is cut in a file or another program.
    Console(width=None if sys.stdout.isatty() else 200).print(table)
