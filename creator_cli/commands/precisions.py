"""precisions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from creator_cli.commands.options import AsJson
from creator_cli.errors import Refused
from creator_cli.names import parse_model_name, parse_version_name
from creator_cli.output import Output
from creator_cli.precisions import Precision
from creator_cli.releases import find_version
from creator_cli.session import open_api
from creator_cli.settings import load_settings


class Leave(StrEnum):
    """The creator's word about a version on a checkpoint."""

    GIVEN = "given"
    REFUSED = "refused"
    NONE = "none"


_NAME = typer.Argument(metavar="ORG/SLUG[@N]", help="A model, to show it; or the version that you speak of.")


def precisions(
    name: Annotated[str, _NAME],
    checkpoint: Annotated[str | None, typer.Option(help="Name or fingerprint of a checkpoint.")] = None,
    leave: Annotated[
        Leave | None,
        typer.Option(help="given: served there whatever was measured; refused: never; none: by what is measured."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the checkpoints that your versions are served on, and what was measured there; or give and refuse leave.

    Example: intarsia precisions acme/triage
    """
    out = Output(as_json=as_json)
    if (checkpoint is None) != (leave is None):
        raise Refused("--checkpoint and --leave go together", field="leave")
    with open_api(load_settings()) as api:
        if checkpoint is None or leave is None:
            found = list(api.precisions(parse_model_name(name.partition("@")[0])))
        else:
            parse_version_name(name)
            found = [api.set_leave(find_version(api, name).id, checkpoint=checkpoint, leave=leave.value)]
    if as_json:
        out.document({"precisions": [one.answer for one in found]})
    elif not found:
        out.say("no version of yours is on another checkpoint than the reference of its base")
    else:
        _show(found, out)


def _show(found: list[Precision], out: Output) -> None:
    rows = [
        (
            one.version,
            one.checkpoint,
            "served" if one.cleared else "not served",
            one.state if one.leave == "none" else f"{one.state}, leave {one.leave}",
            one.share(one.correct),
            one.share(one.reference_correct),
            one.share(one.same_answers),
            one.reason,
        )
        for one in found
    ]
    columns = ("version", "checkpoint", "", "state", "right", "reference", "same", "why")
    out.table(columns, rows, right=("version", "right", "reference", "same"))
