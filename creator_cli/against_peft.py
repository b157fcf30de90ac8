"""`intarsia check --against-peft`: PEFT answers here, and its answers go with the adapter to the platform's replica."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from creator_cli.adapters import CheckedAdapter
from creator_cli.errors import Refused
from creator_cli.output import Output
from creator_cli.peft_extra import bridge
from creator_cli.quality import read_file_of_rows
from protocol.reference import REFERENCE_KEY, read_reference_counts
from sealed_weights.contract import Contract
from sealed_weights.payload import REFERENCE_NAME
from sealed_weights.reference import (
    DTYPES,
    MAX_PROMPT,
    MAX_TOKENS,
    Reference,
    ReferenceAnswer,
    source_digest,
)

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Answered:
    """A message of the creator, PEFT's answer to it, and whether the bare base gives every token of it too."""

    message: str
    text: str
    as_base: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """PEFT's answers: in the base's `dtype`, by these `versions`; `too_long` prompts were left out."""

    answers: tuple[Answered, ...]
    dtype: str
    versions: dict[str, str]
    too_long: int

    def to_json(self) -> dict[str, Any]:
        """Return what `check --json` says of it."""
        return {
            "answers": [{"message": one.message, "text": one.text, "as_base": one.as_base} for one in self.answers],
            "dtype": self.dtype,
            "versions": self.versions,
            "left_out": self.too_long,
        }


def check_against_peft(adapter: CheckedAdapter, base: Path, rows: Path | None, count: int, out: Output) -> Checked:
    """Answer up to `count` rows by PEFT and write `reference.json` into the adapter's folder.

    Without a file of rows the contract's examples are answered. Raises Refused, also for an adapter that changes no
    logit of the base on any of them; then there is no such file.
    """
    questions = _questions(rows, adapter.contract)
    limit = MAX_TOKENS if adapter.contract is None else min(MAX_TOKENS, adapter.contract.max_tokens)
    answered, kept, changed, too_long = list[Answered](), list[ReferenceAnswer](), False, 0
    with bridge(out) as peft:
        with out.waiting(f"loading {base}"):
            loaded = peft.load_adapter(base, adapter.folder)
        if loaded.dtype not in DTYPES:
            raise Refused(f"{base}: its weights are {loaded.dtype}; one of {', '.join(DTYPES)} is needed", field="base")
        with out.counting("answering", min(count, len(questions))) as show:
            for messages in questions:
                if len(kept) == count:
                    break
                prompt = peft.prompt_of(loaded, peft.contract_messages(adapter.contract, messages))
                if len(prompt) > MAX_PROMPT:
                    too_long += 1
                    continue
                got = peft.answer(loaded, prompt, limit)
                beside = peft.beside_base(loaded, got)
                changed = changed or beside.changed
                answered.append(Answered(messages[-1]["content"], got.text, beside.same_tokens))
                kept.append(ReferenceAnswer(got.prompt, got.tokens))
                show(len(kept))
        versions = peft.versions()
    if not kept:
        raise Refused(f"every prompt has more than {MAX_PROMPT} tokens", field="rows")
    if not changed:
        rule = f"changes nothing: on {len(kept)} prompts PEFT computes the base's own logits"
        raise Refused(f"{adapter.folder}: {rule}", field="adapter", hint="save the adapter after training, not before")
    _write(adapter.folder, Reference(source_digest(adapter.folder), loaded.dtype, tuple(kept)))
    return Checked(tuple(answered), loaded.dtype, versions, too_long)


def drop_reference(folder: Path) -> None:
    """Delete what an earlier check kept: a check that fails leaves no answers of other weights behind."""
    (folder / REFERENCE_NAME).unlink(missing_ok=True)


def show_answers(found: Checked, out: Output) -> None:
    """Print the table of the answers, and what happens with them."""
    rows = [(_short(one.message), _short(one.text), "yes" if one.as_base else "") for one in found.answers]
    out.table(("message", "PEFT's answer", "the base's too"), rows)
    same = sum(one.as_base for one in found.answers)
    out.facts(
        [
            ("answers", f"{len(found.answers)} in {found.dtype}, by PEFT {found.versions['peft']}"),
            ("the base's too", f"{same} of {len(found.answers)}"),
        ]
    )
    if found.too_long:
        out.note(f"{found.too_long} prompts of more than {MAX_PROMPT} tokens were left out")
    out.say(f"{REFERENCE_NAME} is beside the adapter: `intarsia push` seals it, and a replica must answer alike")


def replica_facts(report: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return what a replica found of PEFT's answers when it verified a version; nothing where there were none."""
    found = report.get(REFERENCE_KEY)
    if found is None:
        return []
    counts = read_reference_counts(found)
    share = f"{counts.agreed} of {counts.tokens} tokens are PEFT's ({counts.served} there, {counts.peft} under PEFT)"
    return [("against PEFT", share), ("the bare base", f"{counts.base_agreed} of {counts.tokens} tokens are PEFT's")]


def _questions(rows: Path | None, contract: Contract | None) -> Sequence[Messages]:
    if rows is not None:
        return [row.messages for row in read_file_of_rows(rows, None, None)]
    if contract is None or not contract.examples:
        raise Refused("name the rows to answer with --rows: there is no contract with examples", field="rows")
    return [[{"role": "user", "content": one.message}] for one in contract.examples]


def _write(folder: Path, reference: Reference) -> None:
    half = folder / f".{REFERENCE_NAME}.part"
    half.write_bytes(reference.to_bytes())
    os.replace(half, folder / REFERENCE_NAME)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"
