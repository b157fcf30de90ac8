"""Comparisons where people and programs see them: no name by a side before the end, and nobody else's run."""

from __future__ import annotations

import re

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from marketplace.accounts.models import Organization
from marketplace.api.idempotency import HEADER
from marketplace.trials import selectors
from marketplace.trials.models import Trial, TrialRow
from marketplace.trials.running import work_on
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_organization
from tests.marketplace.trials.conftest import FakeApi, rows_of, start

LINES = b"\n".join(b'{"message": "message %d", "expected": "right"}' % number for number in range(1, 21))


@pytest.fixture
def client(buyer: Organization) -> Client:
    client = Client()
    client.force_login(buyer.memberships.get().user)
    return client


def _form(**changes: object) -> dict[str, object]:
    file = SimpleUploadedFile("rows.jsonl", LINES)
    return {
        "first": "acme/good",
        "second": "acme/poor",
        "rows": file,
        "scoring": "json",
        "fields_compared": "",
        "budget": "0.5",
    } | changes


def test_a_run_starts_by_a_file_and_shows_its_verdict_in_plain_words(
    client: Client, fake: FakeApi, buyer: Organization
) -> None:
    fake.say = lambda model, message: "right" if "good" in model else "wrong"
    answer = client.post("/dashboard/comparisons", _form())
    trial = Trial.objects.get()
    assert answer.status_code == 302 and answer["Location"] == f"/dashboard/comparisons/{trial.pk}"
    assert (trial.budget_nano_usd, trial.rows_count) == (5 * 10**8, 20)
    running = client.get(answer["Location"]).content.decode()
    assert trial.seed_hash in running and bytes(trial.seed).hex() not in running
    assert 'hx-trigger="every 2s"' in running
    work_on(trial.pk)
    ended = client.get(answer["Location"]).content.decode()
    side = "A" if trial.model_of("A") == "acme/good@1" else "B"
    assert f"{side} answers better" in ended and "At most 1 in 20 such verdicts is wrong." in ended
    assert bytes(trial.seed).hex() in ended and "every 2s" not in ended


def test_before_the_end_nothing_ties_a_model_to_a_side(client: Client, fake: FakeApi, buyer: Organization) -> None:
    trials = [start(buyer, rows=rows_of(40, None), scoring=Trial.Scoring.JUDGE) for _ in range(2)]
    swapped, straight = trials
    for trial, seed in ((swapped, _seed_with(a_first=False)), (straight, _seed_with(a_first=True))):
        Trial.objects.filter(pk=trial.pk).update(seed=seed)
        work_on(trial.pk)
    pages = {}
    for trial in trials:
        page = client.get(f"/dashboard/comparisons/{trial.pk}").content.decode()
        part = client.get(f"/dashboard/comparisons/{trial.pk}/progress").content.decode()
        body = Api.of(buyer).get(f"trials/{trial.pk}").json()
        assert (body["a"]["model"], body["b"]["model"], body["seed"]) == (None, None, None)
        trial.refresh_from_db()
        varying = {str(trial.pk): "ID", trial.seed_hash: "HASH"}
        text = page + part
        for found, name in varying.items():
            text = text.replace(found, name)
        text = re.sub(r'(csrfmiddlewaretoken" value|name="row" value)="[^"]*"', "", text)
        pages[trial.pk] = re.sub(r"\d\d:\d\d", "", text)
    assert pages[swapped.pk] == pages[straight.pk]  # the same page, whichever model is A


def _seed_with(*, a_first: bool) -> bytes:
    from marketplace.trials import shuffling

    seeds = (bytes([number]) * 32 for number in range(256))
    return next(seed for seed in seeds if shuffling.first_is_a(seed) == a_first)


def test_pairs_are_judged_in_the_browser(client: Client, fake: FakeApi, buyer: Organization) -> None:
    trial = start(buyer, rows=rows_of(3, None), scoring=Trial.Scoring.JUDGE)
    path = f"/dashboard/comparisons/{trial.pk}"
    assert "on their way" in client.get(f"{path}/judge").content.decode()
    work_on(trial.pk)
    for number in (1, 2, 3):
        pair = selectors.next_pair(Trial.objects.get())
        assert pair is not None and pair.number == number
        page = client.get(f"{path}/judge").content.decode()
        assert f"Row {number}: which answers better?" in page and 'data-key="ArrowLeft"' in page
        post = {"row": str(pair.row_id), "choice": "left"}
        assert client.post(f"{path}/judge", post, headers={"HX-Request": "true"}).status_code == 200
        assert client.post(f"{path}/judge", post).status_code == 302  # judged before: told, and not counted again
    assert client.post(f"{path}/judge", {"row": "x", "choice": "left"}).status_code == 404
    trial.refresh_from_db()
    assert trial.ended_by == "rows" and not TrialRow.objects.filter(answers__isnull=False).exists()


def test_rows_that_break_a_rule_are_shown_in_the_form(client: Client, fake: FakeApi) -> None:
    for content, rule in ((b"{", "Line 1 is no JSON."), (b'{"message": "a"}', "choose `judge`")):
        answer = client.post("/dashboard/comparisons", _form(rows=SimpleUploadedFile("rows.jsonl", content)))
        assert answer.status_code == 400 and rule in answer.content.decode()
    assert "There is no acme/none for sale." in (
        client.post("/dashboard/comparisons", _form(first="acme/none")).content.decode()
    )
    assert not Trial.objects.exists()


def test_a_run_is_stopped_and_its_rows_are_deleted_by_its_organization_alone(
    client: Client, fake: FakeApi, buyer: Organization
) -> None:
    trial = start(buyer)
    stranger = Client()
    stranger.force_login(make_organization().memberships.get().user)
    path = f"/dashboard/comparisons/{trial.pk}"
    for part in ("", "/progress", "/judge"):
        assert stranger.get(path + part).status_code == 404
    for part in ("/cancel", "/delete-rows", "/judge"):
        assert stranger.post(path + part).status_code == 404
    trial.refresh_from_db()
    assert trial.state == "running" and TrialRow.objects.filter(sealed__isnull=False).count() == 40
    client.post(f"{path}/cancel")
    assert "Stopped by hand before a decision." in client.get(path).content.decode()
    client.post(f"{path}/delete-rows")
    assert "The rows were deleted on" in client.get(path).content.decode()
    assert not TrialRow.objects.filter(sealed__isnull=False).exists()


def test_the_api_starts_reads_and_cancels(buyer: Organization, fake: FakeApi) -> None:
    fake.say = lambda model, message: "right" if "good" in model else "wrong"
    api = Api.of(buyer)
    wanted = {
        "first": "acme/good",
        "second": "acme/poor@1",
        "budget_nano_usd": 10**8,
        "scoring": "json",
        "rows": [{"message": f"message {number}", "expected": "right"} for number in range(20)],
    }
    first, again = (api.post("trials", wanted, **{HEADER: "one"}) for _ in range(2))
    assert first.status_code == 201 and first.json()["id"] == again.json()["id"] and Trial.objects.count() == 1
    other = api.post("trials", wanted | {"budget_nano_usd": 1}, **{HEADER: "one"})
    assert error_of(other, 422)["code"] == "idempotency_key_reused" and Trial.objects.count() == 1
    found = first.json()
    assert (found["models"], found["rows"], found["winner"]) == (["acme/good@1", "acme/poor@1"], 20, "")
    work_on(Trial.objects.get().pk)
    ended = api.get(f"trials/{found['id']}").json()
    assert ended["ended_by"] == "decided" and ended[ended["winner"].lower()]["model"] == "acme/good@1"
    assert ended["log_e"] > 2.99 and ended["seed"]
    assert api.post(f"trials/{found['id']}/cancel", None).json()["ended_by"] == "decided"
    assert error_of(api.post("trials", wanted | {"rows": [{"text": "a"}]}), 400)["field"] == "rows"
    assert [one["id"] for one in api.get("trials").json()["results"]] == [found["id"]]


def test_pairs_are_judged_through_the_api(buyer: Organization, fake: FakeApi) -> None:
    trial, api = start(buyer, rows=rows_of(2, None), scoring=Trial.Scoring.JUDGE), Api.of(buyer)
    path = f"trials/{trial.pk}/pair"
    assert error_of(api.get(path), 404)["message"] == "there is no such pair to judge now"
    work_on(trial.pk)
    pair = api.get(path).json()
    assert pair.keys() == {"row_id", "number", "message", "left", "right"} and pair["number"] == 1
    judged = {"row_id": pair["row_id"], "choice": "left"}
    assert error_of(api.post(path, judged | {"choice": "up"}), 400)["field"] == "choice"
    assert api.post(path, judged).status_code == 200
    assert error_of(api.post(path, judged), 409)
    assert api.get(path).json()["number"] == 2
