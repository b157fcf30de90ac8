"""rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from creator_cli.commands.options import AsJson
from creator_cli.errors import Refused
from creator_cli.output import Output
from sealed_weights.errors import FormatError, IntakeError
from sealed_weights.intake.saved_modules import rewrite


def rows(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The adapter, with modules_to_save.")],
    out_folder: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that does not exist yet.")],
    base: Annotated[Path, typer.Option(help="The base model's folder: config.json and *.safetensors.")],
    as_json: AsJson = False,
) -> None:
    """Rewrite a whole saved embedding or head as the few rows that were trained.

    Example: intarsia rows ./my-adapter ./rewritten --base ./SmolLM2-135M-Instruct
    """
    out = Output(as_json=as_json)
    try:
        with out.waiting("comparing with the base"):
            written = rewrite(folder, base, out_folder)
    except IntakeError as error:
        raise Refused(f"{error.field}: {error.rule}", field=error.field) from None
    except FormatError as error:
        raise Refused(str(error), field="adapter") from None
    except FileExistsError:
        raise Refused(f"{out_folder}: is there already", field="out") from None
    if as_json:
        tokens = {module: list(ids) for module, ids in written.tokens.items()}
        out.document({"folder": str(out_folder), "tokens": tokens, "dropped": list(written.dropped)})
        return
    for module, ids in written.tokens.items():
        out.say(f"{module}: {len(ids)} trained {'row' if len(ids) == 1 else 'rows'}")
    for name in written.dropped:
        out.say(f"left out: {name}")
    out.say(f"next: intarsia check {out_folder}")
