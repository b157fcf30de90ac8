"""custody and custody verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from creator_cli.commands.options import AsJson, ModelArgument
from creator_cli.custody import check_live_chain, verify_file
from creator_cli.custody import export as write_export
from creator_cli.custody_records import Release
from creator_cli.known_platforms import KnownPlatforms
from creator_cli.names import parse_model_name
from creator_cli.output import Output
from creator_cli.records import time_of
from creator_cli.session import open_api
from creator_cli.settings import load_settings
from sealed_weights.release_log import ReleaseEntry


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
        name = parse_model_name(model)
        listed, remarks = api.custody(name)
        value = api.custody_chain()
        chain = check_live_chain(api.url, value, api.me(), KnownPlatforms.load(settings))
        releases = chain.releases_of(api.model_id(name), remarks)
    if export:
        write_export(export, value)
        out.note(f"the whole chain is written to {export}; next: intarsia custody verify {export}")
    if as_json:
        rows = [{**entry.to_json(), **(remark.to_json() if remark else {})} for entry, remark in releases]
        out.document({**listed, "releases": rows, "verified": chain.summary()})
        return
    if releases:
        out.table(
            ("sequence", "time (UTC)", "version", "purpose", "replica", "lease", "entry hash"),
            [_row(entry, remark) for entry, remark in releases],
            right=("sequence", "version"),
        )
    if chain.checkpoint is None:
        out.say("nothing is proven: the platform shows no release of your organization's keys")
        return
    out.say(
        f"releases of your organization's keys: {len(chain.entries)}, of this model: {len(releases)}; the chain is "
        f"intact and signed {time_of(chain.checkpoint.signed_at):%Y-%m-%d %H:%M:%S} UTC"
    )


def _row(entry: ReleaseEntry, remark: Release | None) -> tuple[object, ...]:
    """Return a line of the table: the chain's own facts, with the replica's name and the lease as the platform says."""
    return (
        entry.sequence,
        f"{time_of(entry.released_at):%Y-%m-%d %H:%M:%S}",
        entry.version,
        entry.purpose,
        f"{remark.replica if remark else '?'} ({str(entry.replica_id)[:8]})",
        remark.lease_state() if remark else "",
        entry.hash().hex()[:16],
    )


@custody.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A file of `intarsia custody ORG/SLUG --export FILE`.")],
    as_json: AsJson = False,
) -> None:
    """Verify an exported chain of your organization offline: every hash, and the signature of the pinned key.

    Example: intarsia custody verify custody.json
    """
    out = Output(as_json=as_json)
    chain, url = verify_file(file, KnownPlatforms.load(load_settings()))
    if as_json:
        out.document({**chain.summary(), "platform": url})
        return
    assert chain.checkpoint is not None, "an empty chain is refused"
    signed_at = time_of(chain.checkpoint.signed_at)
    out.say(f"{file}: the chain is intact and signed {signed_at:%Y-%m-%d %H:%M:%S} UTC; releases: {len(chain.entries)}")
    out.say(f"signed by the key that is pinned for {url}")
