"""init."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from creator_cli.bases import base_names, choose_base
from creator_cli.commands.options import AsJson, Yes
from creator_cli.errors import CliError, Refused
from creator_cli.example import LISTING_NAME
from creator_cli.listing import read_listing
from creator_cli.names import parse_dollars, parse_model_name
from creator_cli.output import Output
from creator_cli.records import Base
from creator_cli.session import open_api
from creator_cli.settings import load_settings

LICENCES = (
    "Apache-2.0",
    "MIT",
    "BSD-3-Clause",
    "CC0-1.0",
    "CC-BY-4.0",
    "CC-BY-SA-4.0",
    "CC-BY-NC-4.0",
    "OpenRAIL-M",
    "Llama-3.1",
    "Gemma",
)
VISIBILITIES = ("public", "unlisted", "private")
_DECIMALS = 6  # of a price per million tokens

T = TypeVar("T")


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The listing to write.")] = Path(LISTING_NAME),
    model: Annotated[str | None, typer.Option(metavar="ORG/SLUG", help="The model's name.")] = None,
    title: Annotated[str | None, typer.Option(help="What people read first.")] = None,
    summary: Annotated[str | None, typer.Option(help="One sentence: what goes in, what comes out.")] = None,
    industry: Annotated[str | None, typer.Option(help="For example finance.")] = None,
    base: Annotated[str | None, typer.Option(help="The base model that the adapter was trained for.")] = None,
    licence: Annotated[str | None, typer.Option(help=f"{', '.join(LICENCES)}, or empty.")] = None,
    visibility: Annotated[str | None, typer.Option(help=f"{', '.join(VISIBILITIES)}.")] = None,
    input_price: Annotated[str | None, typer.Option("--input", help="Dollars per million input tokens.")] = None,
    output_price: Annotated[str | None, typer.Option("--output", help="Dollars per million output tokens.")] = None,
    example: Annotated[str | None, typer.Option(help="A message that the model's page can send.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write a listing, model.json, by asking; options answer beforehand, and --yes takes what is proposed.

    Example: intarsia init
    """
    out = Output(as_json=as_json)
    with open_api(load_settings()) as api:
        organization, bases = api.me().organization, api.bases()
    if not bases:
        raise CliError("the platform serves no base model yet")
    ask = _Questions(yes=yes)
    if file.exists() and not ask.whether(f"{file} exists. Replace it?"):
        raise CliError(f"{file} stays as it is", code="declined")
    name = ask.text("Name of the model", model, f"{organization}/my-model", lambda text: str(parse_model_name(text)))
    org_slug, _, slug = name.partition("/")
    proposed = re.sub("-+", " ", slug).capitalize()
    value: dict[str, Any] = {
        "org_slug": org_slug,
        "slug": slug,
        "title": ask.text("Title", title, proposed, _up_to(120, "title")),
        "summary": ask.text("Summary, one sentence", summary, "", _up_to(280, "summary")),
        "industry": ask.text("Industry", industry, "", _up_to(40, "industry")),
        "base": _ask_base(ask, base, bases),
        "visibility": ask.text("Visibility", visibility, VISIBILITIES[0], _one_of(VISIBILITIES, "visibility")),
    }
    if chosen := ask.text(f"Licence ({', '.join(LICENCES)})", licence, "", _one_of(("", *LICENCES), "licence")):
        value["licence"] = chosen
    value["price"] = {
        "input_micro_usd_per_mtok": ask.text("Dollars per million input tokens", input_price, "0.06", _amount("input")),
        "output_micro_usd_per_mtok": ask.text(
            "Dollars per million output tokens", output_price, "0.24", _amount("output")
        ),
    }
    if message := ask.text("An example message, for the model's page", example, "", _up_to(4000, "example")):
        value["example_messages"] = [{"role": "user", "content": message}]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    read_listing(file)  # what was written is what `push` takes
    if as_json:
        out.document({"file": str(file), "listing": value})
        return
    out.say(f"{file}: the listing {name}. Tags, a card and more of the price: see the table in the documentation")
    out.say(f"next: intarsia check DIR, then intarsia push DIR --listing {file}")


@dataclass(frozen=True, slots=True)
class _Questions:
    """Asks what no option answers; with `yes`, what is proposed is the answer."""

    yes: bool

    def text(self, question: str, given: str | None, proposed: str, read: Callable[[str], T]) -> T:
        """Return the option's value, else what the person types; a wrong one is asked for again."""
        if given is not None or self.yes:
            return read(proposed if given is None else given)
        _require_terminal(question)
        while True:
            try:
                return read(str(typer.prompt(question, default=proposed, show_default=bool(proposed), err=True)))
            except Refused as refused:
                typer.echo(refused.message, err=True)

    def whether(self, question: str) -> bool:
        """Return whether the person says yes; nothing is replaced without that, or --yes."""
        if self.yes:
            return True
        _require_terminal(question)
        return typer.confirm(question, err=True)


def has_terminal() -> bool:
    """Return whether somebody is there to be asked."""
    return sys.stdin.isatty()


def _require_terminal(question: str) -> None:
    if not has_terminal():
        raise Refused(f"{question}: standard input is not a terminal: add --yes, or answer by options", field="yes")


def _ask_base(ask: _Questions, given: str | None, bases: list[Base]) -> str:
    """Return the fingerprint of the base: a name may come to mean another model. Among several, none is proposed."""

    def read(text: str) -> str:
        return choose_base(bases, text or None, how="intarsia init --base NAME").fingerprint

    return ask.text(f"Base model ({base_names(bases)})", given, bases[0].name if len(bases) == 1 else "", read)


def _up_to(most: int, field: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if len(text.strip()) > most or (field == "title" and not text.strip()):
            raise Refused(f"{field}: must be {'1' if field == 'title' else '0'} to {most} characters", field=field)
        return text.strip()

    return read


def _one_of(known: tuple[str, ...], field: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise Refused(f"{text!r} is none of {', '.join(one for one in known if one)}", field=field)
        return text

    return read


def _amount(field: str) -> Callable[[str], int]:
    return lambda text: parse_dollars(text, decimals=_DECIMALS, field=field)
