"""The measuring of one run, from sealed rows to a figure. Rows are in the clear in this process's memory alone.

The calls are those of any customer: to `/v1`, metered, charged to the run's purse. Each row is asked twice, once of the
version and once of its base under the same contract; where a guard's threshold is set, it is asked of the guard, and
where a version is cleared for a checkpoint, of the version there and on the reference (`comparing`), for nothing. A
worker that goes on where another was killed makes the same calls under the same names, and pays for none twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from marketplace.calls import Caller, CallRefused, CallsEnded, ChatAnswer, ChatCall
from marketplace.catalog.errors import StorageUnavailable
from marketplace.catalog.models import Version
from marketplace.catalog.package_stores import package_store
from marketplace.evals.comparing import Comparison
from marketplace.evals.guard_odds import GuardOdds, NoThreshold
from marketplace.evals.models import EvalRun
from marketplace.evals.quotes import SERVICE_TIER, answer_limit
from marketplace.evals.runs import (
    JudgedCall,
    fail_run,
    finish_comparison,
    finish_guard_run,
    finish_run,
    give_back_claim,
    keep_claim,
    purse_of,
)
from marketplace.evals.sets import refuse_set
from marketplace.vault.rows_keys import release_rows_key
from protocol.eval_rows import MAX_SET_BYTES, EvalRow, RowRefused, Scorer, read_rows, read_scorer
from protocol.scorers import PatternRefused, expected_label, is_right, label_of, macro_f1
from sealed_weights import SealError, open_rows
from sealed_weights.secret_memory import wipe

PROGRESS_SECONDS = 2.0
CONCURRENCY = 32  # calls at once: they are of the class batch, and wait for customers in the replica's queue


def measure(run: EvalRun) -> None:
    """Measure a run that the caller has claimed, and end it; or give the claim back where the platform is away."""
    scorer = read_scorer(run.eval_set.scorer)
    try:
        rows = _rows(run, scorer)
        measured = _measured(run, scorer, rows)
        with Caller(purse_of(run), concurrency=CONCURRENCY) as caller:
            told = time.monotonic()
            for outcome in caller.run(measured.to_ask()):
                if isinstance(outcome, CallRefused):
                    row = outcome.name.partition("-")[0]
                    fail_run(run, f"row {row}: the model refuses it ({outcome.code})")
                    return
                measured.add(outcome)
                if time.monotonic() - told > PROGRESS_SECONDS:
                    told = time.monotonic()
                    keep_claim(run, calls_done=measured.done)
    except RowRefused as refusal:
        refuse_set(run.eval_set, str(refusal))
        fail_run(run, str(refusal))
    except (PatternRefused, NoThreshold) as refusal:
        fail_run(run, str(refusal))
    except SealError:
        fail_run(run, "the set's package does not open")
    except StorageUnavailable:
        give_back_claim(run)
    except FileNotFoundError:
        fail_run(run, "the set's package is missing from the platform's storage")
    except CallsEnded as end:
        if end.code == "unavailable":
            give_back_claim(run)
        else:
            fail_run(run, str(end))
    else:
        _finish(run, measured)


def _measured(run: EvalRun, scorer: Scorer, rows: list[EvalRow]) -> _Judged | GuardOdds | Comparison:
    if run.checkpoint is not None:
        return Comparison(run, scorer, rows)
    return GuardOdds(run.guard, rows) if run.guard else _Judged(run.version, scorer, rows)


def _finish(run: EvalRun, measured: _Judged | GuardOdds | Comparison) -> None:
    if isinstance(measured, _Judged):
        finish_run(run, measured.calls, macro_f1=measured.macro_f1())
        return
    if isinstance(measured, Comparison):
        finish_comparison(run, measured.figure())
        return
    try:
        finish_guard_run(run, measured.threshold())
    except NoThreshold as refusal:
        fail_run(run, str(refusal))


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
        with (
            package_store().reading(stored.package_digest, max_bytes=stored.package_size) as package,
            open_rows(
                package,
                dek=dek,
                creator_public_key=bytes(stored.signing_key.public_key),
                expected_digest=stored.package_digest,
                max_plaintext=MAX_SET_BYTES,
            ) as opened,
        ):
            schema = run.version.contract["output_schema"] if run.version.contract else None
            rows = read_rows(bytes(opened.rows), scorer, schema)
    finally:
        wipe(dek)
    if len(rows) != stored.rows:
        raise RowRefused(0, f"{stored.rows} rows were announced, the set has {len(rows)}")
    return rows


class _Judged:
    """The calls of a run so far, and the labels that they gave; texts are judged and dropped."""

    def __init__(self, version: Version, scorer: Scorer, rows: list[EvalRow]) -> None:
        self._version, self._scorer, self._rows = version, scorer, rows
        self._labels: dict[bool, list[tuple[str, str | None]]] = {False: [], True: []}
        self.calls: list[JudgedCall] = []

    def to_ask(self) -> Iterator[ChatCall]:
        """Yield both calls of each row, the base's beside the version's: on the reference, whatever else serves it."""
        version, reference = self._version, self._version.model.base_model.fingerprint
        model = f"{version.model.full_name}@{version.number}"
        limit = {} if version.contract else {"max_tokens": answer_limit(version), "temperature": 0}
        for number, row in enumerate(self._rows, start=1):
            body = {"model": model, "messages": row.messages, "service_tier": SERVICE_TIER, **limit}
            yield ChatCall(f"{number}-version", body, teaches=True, checkpoint=reference)
            yield ChatCall(f"{number}-base", body, bare_base=True, checkpoint=reference)

    @property
    def done(self) -> int:
        """Return how many calls were judged."""
        return len(self.calls)

    def add(self, answer: ChatAnswer) -> None:
        """Judge the answer of a call of `to_ask`. Raises PatternRefused, which then names the row."""
        number, _, asked = answer.name.partition("-")
        row, base = self._rows[int(number) - 1], asked == "base"
        try:
            right = is_right(self._scorer, row, answer.text)
        except PatternRefused as refusal:
            raise PatternRefused(f"row {number}: {refusal}") from None
        self.calls.append(JudgedCall(int(number), base, right, answer.prediction_id))
        if self._scorer.kind == "label":
            self._labels[base].append((expected_label(self._scorer, row), label_of(self._scorer, answer.text)))

    def macro_f1(self) -> tuple[float, float] | None:
        """Return that of the version and that of the base, None for another scorer than of labels."""
        if self._scorer.kind != "label":
            return None
        return macro_f1(self._labels[False]), macro_f1(self._labels[True])
