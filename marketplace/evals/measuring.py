"""The measuring of one run, from sealed rows to a figure. Rows are in the clear in this process's memory alone.

The calls are those of any customer: to `/v1`, metered, charged to the run's purse. Each row is asked twice, once of the
version and once of its base under the same contract. A worker that goes on where another was killed makes the same
calls under the same names, and pays for none twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from marketplace.calls import Caller, CallRefused, CallsEnded, ChatCall
from marketplace.catalog import blobs
from marketplace.evals.models import EvalRun
from marketplace.evals.quotes import SERVICE_TIER, answer_limit
from marketplace.evals.runs import JudgedCall, fail_run, finish_run, give_back_claim, keep_claim, purse_of
from marketplace.evals.scorers import PatternRefused, expected_label, is_right, label_of, macro_f1
from marketplace.evals.sets import refuse_set
from marketplace.vault.rows_keys import release_rows_key
from protocol.eval_rows import MAX_SET_BYTES, EvalRow, RowRefused, Scorer, read_rows, read_scorer
from sealed_weights import SealError, open_rows
from sealed_weights.secret_memory import wipe

PROGRESS_SECONDS = 2.0
CONCURRENCY = 32  # calls at once: they are of the class batch, and wait for customers in the replica's queue


def measure(run: EvalRun) -> None:
    """Measure a run that the caller has claimed, and end it; or give the claim back where the platform is away."""
    scorer = read_scorer(run.eval_set.scorer)
    try:
        rows = _rows(run, scorer)
        judged = _Judged(scorer, rows)
        with Caller(purse_of(run), concurrency=CONCURRENCY) as caller:
            told = time.monotonic()
            for outcome in caller.run(_calls(run, rows)):
                if isinstance(outcome, CallRefused):
                    row = outcome.name.partition("-")[0]
                    fail_run(run, f"row {row}: the model refuses it ({outcome.code})")
                    return
                judged.add(outcome.name, outcome.text, outcome.prediction_id)
                if time.monotonic() - told > PROGRESS_SECONDS:
                    told = time.monotonic()
                    keep_claim(run, calls_done=len(judged.calls))
    except RowRefused as refusal:
        refuse_set(run.eval_set, str(refusal))
        fail_run(run, str(refusal))
    except PatternRefused as refusal:
        fail_run(run, str(refusal))
    except SealError:
        fail_run(run, "the set's package does not open")
    except CallsEnded as end:
        if end.code == "unavailable":
            give_back_claim(run)
        else:
            fail_run(run, str(end))
    else:
        finish_run(run, judged.calls, macro_f1=judged.macro_f1())


def _rows(run: EvalRun, scorer: Scorer) -> list[EvalRow]:
    """Return the rows, opened with a key whose release is logged. Raises RowRefused, SealError."""
    stored = run.eval_set
    assert stored.package_digest is not None and stored.wrapped_key is not None, "a ready set has both"
    dek = release_rows_key(
        version=run.version,
        set_id=stored.pk,
        wrapped_key=bytes(stored.wrapped_key),
        digest=stored.package_digest,
        run_id=run.pk,
    )
    try:
        with open_rows(
            blobs.package_path(stored.package_digest),
            dek=dek,
            creator_public_key=bytes(stored.signing_key.public_key),
            expected_digest=stored.package_digest,
            max_plaintext=MAX_SET_BYTES,
        ) as opened:
            schema = run.version.contract["output_schema"] if run.version.contract else None
            rows = read_rows(bytes(opened.rows), scorer, schema)
    finally:
        wipe(dek)
    if len(rows) != stored.rows:
        raise RowRefused(0, f"{stored.rows} rows were announced, the set has {len(rows)}")
    return rows


def _calls(run: EvalRun, rows: list[EvalRow]) -> Iterator[ChatCall]:
    """Yield both calls of each row, the base's beside the version's."""
    model = f"{run.version.model.full_name}@{run.version.number}"
    limit = {} if run.version.contract else {"max_tokens": answer_limit(run.version), "temperature": 0}
    for number, row in enumerate(rows, start=1):
        body = {"model": model, "messages": row.messages, "service_tier": SERVICE_TIER, **limit}
        yield ChatCall(f"{number}-version", body)
        yield ChatCall(f"{number}-base", body, bare_base=True)


class _Judged:
    """The calls of a run so far, and the labels that they gave; texts are judged and dropped."""

    def __init__(self, scorer: Scorer, rows: list[EvalRow]) -> None:
        self._scorer, self._rows = scorer, rows
        self._labels: dict[bool, list[tuple[str, str | None]]] = {False: [], True: []}
        self.calls: list[JudgedCall] = []

    def add(self, name: str, text: str, prediction_id: object) -> None:
        """Judge the answer of a call of `_calls`. Raises PatternRefused, which then names the row."""
        number, _, asked = name.partition("-")
        row, base = self._rows[int(number) - 1], asked == "base"
        try:
            right = is_right(self._scorer, row, text)
        except PatternRefused as refusal:
            raise PatternRefused(f"row {number}: {refusal}") from None
        self.calls.append(JudgedCall(int(number), base, right, prediction_id))  # type: ignore[arg-type]
        if self._scorer.kind == "label":
            self._labels[base].append((expected_label(self._scorer, row), label_of(self._scorer, text)))

    def macro_f1(self) -> tuple[float, float] | None:
        """Return that of the version and that of the base, None for another scorer than of labels."""
        if self._scorer.kind != "label":
            return None
        return macro_f1(self._labels[False]), macro_f1(self._labels[True])
