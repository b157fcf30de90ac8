"""custody and custody verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from creator_cli.commands.options import AsJson, ModelArgument
from creator_cli.custody import check_live_chain, verify_file
from creator_cli.custody import export as write_export
from creator_cli.known_platforms import KnownPlatforms
from creator_cli.names import parse_model_name
from creator_cli.output import Output
from creator_cli.session import open_api
from creator_cli.settings import load_settings


class _ShowByDefault(TyperGroup):
    """`custody acme/triage` is `custody show acme/triage`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


custody = typer.Typer(
    cls=_ShowByDefault,
    add_completion=False,
    no_args_is_help=True,
    help="Show who held the keys of a model, and when: intarsia custody ORG/SLUG [--export FILE].",
)


@custody.command()
def show(
    model: ModelArgument,
    export: Annotated[Path | None, typer.Option(help="Write your organization's whole chain to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """List every release of a model's key, newest first, and check the whole chain.

    Example: intarsia custody acme/triage --export custody.json
    """
    out = Output(as_json=as_json)
    settings = load_settings()
    with open_api(settings) as api:
        listed, releases = api.custody(parse_model_name(model))
        value = api.custody_chain()
        chain = check_live_chain(api.url, value, KnownPlatforms.load(settings))
    if export:
        write_export(export, value)
        out.note(f"the whole chain is written to {export}; check it: intarsia custody verify {export}")
    if as_json:
        out.document({**listed, "verified": chain.summary()})
        return
    rows = [
        (
            release.sequence,
            f"{release.released_at:%Y-%m-%d %H:%M:%S}",
            release.version,
            release.purpose,
            release.replica,
            release.entry_hash.hex()[:16],
        )
        for release in releases
    ]
    if rows:
        out.table(
            ("sequence", "time (UTC)", "version", "purpose", "replica", "entry hash"),
            rows,
            right=("sequence", "version"),
        )
    out.say(f"releases of your organization's keys: {len(chain.entries)}; the chain is intact")


@custody.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A file of `intarsia custody ORG/SLUG --export FILE`.")],
    as_json: AsJson = False,
) -> None:
    """Verify an exported chain offline: every hash, and the platform's signature.

    Example: intarsia custody verify custody.json
    """
    out = Output(as_json=as_json)
    chain, url = verify_file(file, KnownPlatforms.load(load_settings()))
    if as_json:
        out.document({**chain.summary(), "platform": url})
        return
    out.say(f"{file}: the chain is intact and signed; releases: {len(chain.entries)}")
    if url:
        out.say(f"signed by the key that is pinned for {url}")
    else:
        out.note("this machine has no pinned key to compare the signer with: run intarsia custody ORG/SLUG once")
