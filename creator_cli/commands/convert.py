"""convert."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from creator_cli.adapters import check_against, read_base_config
from creator_cli.commands.options import AsJson
from creator_cli.errors import Refused
from creator_cli.evals import make_scorer
from creator_cli.output import Output
from creator_cli.peft_extra import bridge
from creator_cli.quality import count_right, read_file_of_rows
from protocol.eval_rows import EvalRow, Scorer
from sealed_weights.contract import Contract, read_contract
from sealed_weights.errors import SealError


@dataclass(frozen=True, slots=True)
class _Rows:
    rows: list[EvalRow]
    scorer: Scorer
    contract: Contract | None


def convert(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The adapter, as PEFT saved it.")],
    destination: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that does not exist yet.")],
    base: Annotated[Path, typer.Option(metavar="DIR", help="The base model: its config.json, weights and tokenizer.")],
    rank: Annotated[
        int | None, typer.Option(min=1, max=256, help="Of every module; the least that is enough if left out.")
    ] = None,
    initial: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="For PiSSA, OLoRA, CorDA, LoRA-GA: the adapter as it was before training."),
    ] = None,
    rows: Annotated[
        Path | None, typer.Option("--eval", metavar="ROWS", help="Rows to measure the loss of quality with.")
    ] = None,
    scorer: Annotated[str, typer.Option(help="Of the rows: json, fields, label, regex or number.")] = "json",
    field: Annotated[list[str], typer.Option(help="The field that is judged; several for the scorer fields.")] = [],  # noqa: B006
    tolerance: Annotated[float | None, typer.Option(help="Of the scorer number.")] = None,
    as_json: AsJson = False,
) -> None:
    """Convert an adapter of another PEFT method to plain LoRA on this machine, and measure what that costs.

    Example: intarsia convert ./loha ./my-adapter --base ./base --eval rows.jsonl --scorer label --field category
    """
    out = Output(as_json=as_json)
    if destination.exists():
        raise Refused(f"{destination} exists already; name a new folder", field="out")
    judged = None if rows is None else _read(folder, rows, make_scorer(scorer, field, tolerance))
    with bridge(out) as peft:
        method, init = peft.method_of(folder)
        _require_something_to_do(method, init, initial)
        if initial is None:
            with out.waiting(f"loading {base}"):
                loaded = peft.load_adapter(base, folder)
            before = _count(peft, loaded, judged, out, "before")
            found = peft.convert(loaded, folder, destination, rank, bar=out.has_terminal)
            del loaded
        else:
            before = _measure(peft, base, folder, judged, out, "before")
            found = peft.subtract_initial(folder, initial, destination)
        try:
            checked = check_against(destination, read_base_config(base / "config.json"))
            after = _measure(peft, base, destination, judged, out, "after")
        except BaseException:
            shutil.rmtree(destination, ignore_errors=True)  # what no replica takes is not left as if it were done
            raise
    quality = None if judged is None else {"rows": len(judged.rows), "right_before": before, "right_after": after}
    if as_json:
        out.document(_report(found, checked.report(), destination, quality))
        return
    _show(found, destination, quality, out)


def _read(folder: Path, rows: Path, scorer: Scorer) -> _Rows:
    try:
        contract = read_contract(folder)
    except SealError as error:
        raise Refused(str(error), field="contract.json") from None
    return _Rows(read_file_of_rows(rows, scorer, contract), scorer, contract)


def _require_something_to_do(method: str, init: str | None, initial: Path | None) -> None:
    if initial is not None and init is None:
        rule = "--initial is for PiSSA, OLoRA, CorDA and LoRA-GA; this adapter left its base alone"
        raise Refused(rule, field="initial")
    if initial is None and init is not None:
        rule = f"init_lora_weights {init!r} changed the base: the adapter as it was before training is needed"
        raise Refused(rule, field="initial", hint="intarsia convert DIR OUT --base BASE --initial INITIAL")
    if method == "LORA" and init is None:
        raise Refused("this is a LoRA already", field="adapter", hint="intarsia check DIR")


def _measure(peft: Any, base: Path, folder: Path, judged: _Rows | None, out: Output, when: str) -> int | None:
    return None if judged is None else _count(peft, peft.load_adapter(base, folder), judged, out, when)


def _count(peft: Any, loaded: Any, judged: _Rows | None, out: Output, when: str) -> int | None:
    if judged is None:
        return None
    return count_right(peft, loaded, judged.rows, judged.scorer, judged.contract, out, f"answering, {when}")


def _report(found: Any, checked: dict[str, Any], folder: Path, quality: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "method": found.method,
        "error": found.whole,
        "worst": {"module": found.worst.module, "error": found.worst.error},
        "modules": [{"module": one.module, "rank": one.rank, "error": one.error} for one in found.modules],
        "quality": quality,
        **checked,
    }


def _show(found: Any, folder: Path, quality: dict[str, Any] | None, out: Output) -> None:
    by_error = sorted(found.modules, key=lambda one: -one.error)
    out.table(
        ("module", "rank", "error of ΔW"),
        [(one.module, one.rank, _percent(one.error)) for one in by_error],
        right=("rank", "error of ΔW"),
    )
    facts: list[tuple[str, object]] = [
        ("method", found.method),
        ("rank", found.rank),
        ("error of ΔW", f"{_percent(found.whole)} in all, {_percent(found.worst.error)} at worst"),
    ]
    if quality is not None:
        count = quality["rows"]
        for when in ("before", "after"):
            right = quality[f"right_{when}"]
            facts.append((f"right {when}", f"{right} of {count} ({100 * right / count:.1f} %)"))
    out.facts(facts)
    out.say(f"next: intarsia check {folder}, then intarsia push {folder} --listing model.json")


def _percent(error: float) -> str:
    return f"{100 * error:.2f} %"
