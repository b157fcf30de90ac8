"""Runs: blind until their end, stopped by the e-value, budget, rows or hand; killed workers pay nothing twice."""

from __future__ import annotations

import io
import json
import zipfile
from datetime import timedelta
from itertools import pairwise

import pytest
from django.db import connection
from django.utils import timezone

from marketplace.access.services import accept_licence
from marketplace.accounts.audit import PLATFORM
from marketplace.accounts.errors import InvalidInput
from marketplace.accounts.models import ApiKey, Organization
from marketplace.catalog.models import Model
from marketplace.catalog.services import update_model
from marketplace.catalog.services.listings import ListingText
from marketplace.privacy.export import write_organization_copy
from marketplace.trials import sealing, selectors, services, shuffling, tasks
from marketplace.trials.errors import NotToJudge, TooManyTrials, UnknownModel
from marketplace.trials.models import Trial, TrialRow
from marketplace.trials.rows import Row
from marketplace.trials.running import WINDOW, work_on
from marketplace.vault.models import AnswerKey
from tests.marketplace.catalog.factories import make_organization
from tests.marketplace.trials.conftest import COST, FakeApi, rows_of, start


def _say(model: str, message: str) -> str:
    """The good model is right in every row, the poor one in every other."""
    return "right" if "good" in model or int(message.split()[-1]) % 2 else "wrong"


def _no_lease(trial: Trial) -> None:
    Trial.objects.filter(pk=trial.pk).update(leased_until=timezone.now() - timedelta(seconds=1))


def test_the_better_model_is_found_and_named_at_the_end(buyer: Organization, fake: FakeApi) -> None:
    fake.say = _say
    trial = start(buyer)
    hashed = trial.seed_hash
    assert work_on(trial.pk) is False
    trial.refresh_from_db()
    progress = selectors.progress_of(trial)
    assert (trial.state, trial.ended_by) == ("ended", "decided")
    assert {"A": progress.a_model, "B": progress.b_model}[progress.winner] == "acme/good@1"
    assert shuffling.commitment(bytes.fromhex(progress.seed or "")) == hashed
    assert progress.last is not None and 0 in (progress.last.a_wins, progress.last.b_wins)
    assert progress.rows_done < trial.rows_count
    assert fake.spent == progress.cost_nano_usd <= (progress.rows_done + WINDOW) * 2 * COST  # a window beyond at most
    assert ApiKey.objects.get(pk=trial.purse_id).revoked_at is not None


def test_a_killed_worker_is_followed_by_one_that_pays_nothing_again(buyer: Organization, fake: FakeApi) -> None:
    trial = start(buyer, 30)
    for outcomes in (3, 8, 21):
        fake.die_after = outcomes
        with pytest.raises(KeyboardInterrupt):
            work_on(trial.pk)
        assert work_on(trial.pk) is False  # the lease of the dead worker holds
        _no_lease(trial)
    fake.die_after = 10**9
    work_on(trial.pk)
    trial.refresh_from_db()
    progress = selectors.progress_of(trial)
    assert (trial.ended_by, progress.rows_done, progress.winner) == ("rows", 30, "")
    assert fake.spent == 60 * COST == progress.cost_nano_usd


def test_the_order_of_each_row_is_that_of_the_seed(buyer: Organization, fake: FakeApi) -> None:
    trial = start(buyer, 24)
    work_on(trial.pk)
    firsts = [model for (name, model), (after, _) in pairwise(fake.order) if name[:-2] == after[:-2]]
    assert firsts == [trial.model_of("A" if trial.a_is_left(number) else "B") for number in range(1, 25)]
    assert set(firsts) == {"acme/good@1", "acme/poor@1"}


def test_a_run_ends_at_its_budget_with_what_it_has(buyer: Organization, fake: FakeApi) -> None:
    fake.budget = 11 * COST
    trial = start(buyer)
    work_on(trial.pk)
    trial.refresh_from_db()
    progress = selectors.progress_of(trial)
    assert (trial.ended_by, progress.rows_done, progress.cost_nano_usd) == ("budget", 5, 11 * COST)
    assert progress.winner == "" and progress.a_model is not None


def test_a_row_that_the_api_refuses_counts_for_neither(buyer: Organization, fake: FakeApi) -> None:
    fake.say = lambda model, message: None if message == "message 2" and "poor" in model else "right"
    trial = start(buyer, 4)
    work_on(trial.pk)
    trial.refresh_from_db()
    progress = selectors.progress_of(trial)
    assert (trial.ended_by, progress.rows_done, progress.rows_refused) == ("rows", 4, 1)
    assert progress.last is not None and (progress.last.a_wins, progress.last.b_wins) == (0, 0)


def test_a_run_is_cancelled_by_hand_and_never_goes_on(buyer: Organization, fake: FakeApi) -> None:
    trial = start(buyer)
    services.cancel_trial(trial=trial)
    services.cancel_trial(trial=trial)
    assert (trial.state, trial.ended_by) == ("ended", "cancelled")
    _no_lease(trial)
    assert work_on(trial.pk) is False and fake.order == []


def test_fields_are_compared_one_by_one(buyer: Organization, fake: FakeApi) -> None:
    fake.say = lambda model, message: '{"a": 1, "b": 2}' if "good" in model else '{"a": 1, "b": 9}'
    trial = start(buyer, rows=rows_of(8, {"a": 1, "b": 2}), scoring=Trial.Scoring.FIELDS, fields=["a", "b"])
    work_on(trial.pk)
    trial.refresh_from_db()
    progress = selectors.progress_of(trial)
    assert trial.ended_by == "decided" and progress.rows_done == 7  # 7 of 7: B(7.5, 0.5) / π · 2^7 = 26.8


def test_the_consumer_judges_pairs_without_names(buyer: Organization, fake: FakeApi) -> None:
    fake.say = lambda model, message: f"{message}, {'well' if 'good' in model else 'badly'}"
    trial = start(buyer, rows=rows_of(40, None), scoring=Trial.Scoring.JUDGE)
    judged = 0
    while True:
        work_on(trial.pk)
        trial.refresh_from_db()
        pair = selectors.next_pair(trial)
        if pair is None:
            break
        assert {pair.left, pair.right} == {f"{pair.message}, well", f"{pair.message}, badly"}
        services.judge_row(trial=trial, row_id=pair.row_id, choice="left" if "well" in pair.left else "right")
        judged += 1
        with pytest.raises(NotToJudge):
            services.judge_row(trial=trial, row_id=pair.row_id, choice="left")
    progress = selectors.progress_of(trial)
    assert (trial.ended_by, judged) == ("decided", 7)
    assert {"A": progress.a_model, "B": progress.b_model}[progress.winner] == "acme/good@1"
    assert len(fake.charged) <= 2 * (judged + selectors.AHEAD)  # what nobody judges is not bought far ahead


def test_answers_that_were_paid_can_be_judged_after_the_budgets_end(buyer: Organization, fake: FakeApi) -> None:
    fake.budget = 6 * COST
    trial = start(buyer, rows=rows_of(40, None), scoring=Trial.Scoring.JUDGE)
    work_on(trial.pk)
    trial.refresh_from_db()
    assert (trial.state, selectors.judgeable(trial).count()) == ("running", 3)
    for _ in range(3):
        pair = selectors.next_pair(trial)
        assert pair is not None
        services.judge_row(trial=trial, row_id=pair.row_id, choice="neither")
    trial.refresh_from_db()
    assert (trial.state, trial.ended_by) == ("ended", "budget")


def test_rows_are_encrypted_and_deleted_on_demand_and_after_thirty_days(buyer: Organization, fake: FakeApi) -> None:
    trial = start(buyer, rows=[Row("the secret message", "the secret answer")])
    with connection.cursor() as cursor:
        cursor.execute("SELECT string_agg(t::text, '') FROM trials_trialrow t")
        stored = bytes.fromhex(cursor.fetchone()[0].split("\\x")[1].split('"')[0])
    assert b"secret" not in stored and AnswerKey.objects.filter(pk=buyer.pk).exists()
    row = TrialRow.objects.get()
    assert sealing.open_row(sealing.cipher_of(buyer.pk), row) == Row("the secret message", "the secret answer")
    work_on(trial.pk)
    Trial.objects.filter(pk=trial.pk).update(ended_at=timezone.now() - timedelta(days=29))
    tasks.delete_old_rows()
    assert TrialRow.objects.get().sealed is not None
    Trial.objects.filter(pk=trial.pk).update(ended_at=timezone.now() - timedelta(days=31))
    tasks.delete_old_rows()
    kept = TrialRow.objects.get()
    assert (kept.sealed, kept.answers, kept.winner) == (None, None, 0)
    other = start(buyer)
    services.delete_rows(trial=other)
    assert not TrialRow.objects.filter(trial=other, sealed__isnull=False).exists() and other.ended


def test_a_copy_of_the_organizations_data_has_its_rows_in_the_clear(buyer: Organization, fake: FakeApi) -> None:
    start(buyer, rows=[Row("the message", {"label": "x"})])
    target = io.BytesIO()
    write_organization_copy(buyer, target)
    with zipfile.ZipFile(target) as archive:
        (row,) = archive.read("trials_trialrow.jsonl").decode().splitlines()
        assert (json.loads(row)["message"], json.loads(row)["expected"]) == ("the message", {"label": "x"})
        assert "seed" not in json.loads(archive.read("trials_trial.jsonl"))
    other = io.BytesIO()
    write_organization_copy(make_organization(), other)
    with zipfile.ZipFile(other) as archive:
        assert archive.read("trials_trialrow.jsonl") == b""


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"first": "acme"}, UnknownModel),
        ({"first": "acme/none"}, UnknownModel),
        ({"second": "acme/poor@7"}, UnknownModel),
        ({"second": "acme/good@1"}, InvalidInput),
        ({"budget_nano_usd": 0}, InvalidInput),
        ({"scoring": Trial.Scoring.JUDGE}, InvalidInput),
        ({"scoring": Trial.Scoring.FIELDS}, InvalidInput),
        ({"fields": ["a"]}, InvalidInput),
        ({"rows": [Row("a")]}, InvalidInput),
    ],
)
def test_a_run_that_cannot_be_is_refused_and_costs_nothing(
    buyer: Organization, fake: FakeApi, changes: dict[str, object], refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        start(buyer, **changes)
    assert not Trial.objects.exists() and not ApiKey.objects.exists()


def test_a_model_that_asks_for_its_licence_is_compared_once_it_is_accepted(buyer: Organization, fake: FakeApi) -> None:
    model = Model.objects.get(slug="good")
    update_model(model=model, text=ListingText(licence="MIT", licence_required=True))
    with pytest.raises(UnknownModel) as refused:
        start(buyer, 1)
    assert refused.value.code == "not_admitted" and not Trial.objects.exists()
    accept_licence(model=model, organization=buyer, digest=model.terms_digest, actor=PLATFORM)
    start(buyer, 1)


def test_an_organization_has_three_runs_at_once(buyer: Organization, fake: FakeApi) -> None:
    for _ in range(3):
        start(buyer, 1)
    with pytest.raises(TooManyTrials):
        start(buyer, 1)


def test_beat_goes_on_with_runs_and_closes_purses_that_were_left(
    buyer: Organization, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    monkeypatch.setattr(tasks, "enqueue_run", sent.append)
    idle, ended = start(buyer), start(buyer)
    Trial.objects.filter(pk=ended.pk).update(state="ended", ended_at=timezone.now())  # killed before the purse closed
    tasks.resume_trials()
    assert sent == [idle.pk]
    assert set(ApiKey.objects.filter(revoked_at__isnull=False).values_list("pk", flat=True)) == {ended.purse_id}
