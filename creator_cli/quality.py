"""The quality of an adapter on this machine: right answers of PEFT on the creator's own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from creator_cli.errors import Refused
from creator_cli.output import Output
from protocol.errors import ProtocolError
from protocol.eval_rows import MAX_SET_BYTES, EvalRow, RowRefused, Scorer, read_rows
from protocol.scorers import PatternRefused, is_right
from sealed_weights.contract import Contract

MAX_TOKENS = 512  # of an answer without a contract, as in an evaluation


def read_file_of_rows(path: Path, scorer: Scorer | None, contract: Contract | None) -> list[EvalRow]:
    """Return the rows of a file, checked as those of an evaluation; raises Refused with the row and the rule."""
    try:
        if path.stat().st_size > MAX_SET_BYTES:
            raise Refused(f"{path}: a set has at most {MAX_SET_BYTES >> 20} MB", field="rows")
        return read_rows(path.read_bytes(), scorer, None if contract is None else contract.output)
    except RowRefused as refusal:
        raise Refused(f"{path}: {refusal}", field="rows") from None
    except ProtocolError as error:
        raise Refused(str(error), field="rows") from None
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror})", field="rows") from None


def count_right(
    peft: Any, loaded: Any, rows: list[EvalRow], scorer: Scorer, contract: Contract | None, out: Output, what: str
) -> int:
    """Return how many rows PEFT answers rightly, greedily and without a grammar; raises Refused."""
    right = 0
    limit = MAX_TOKENS if contract is None else contract.max_tokens
    with out.counting(what, len(rows)) as show:
        for number, row in enumerate(rows, start=1):
            prompt = peft.prompt_of(loaded, peft.contract_messages(contract, row.messages))
            try:
                right += is_right(scorer, row, peft.answer(loaded, prompt, limit).text)
            except PatternRefused as refusal:
                raise Refused(f"row {number}: {refusal}", field="rows") from None
            show(number)
    return right
