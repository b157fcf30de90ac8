"""Runs on pages and in the API: the same figures, each call with its times, and an end that holds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from marketplace.accounts.audit import entries_of
from marketplace.accounts.models import Membership
from marketplace.accounts.services import create_api_key
from marketplace.receipts.run_calls import CallView
from marketplace.web.run_chart import ROW, WIDTH, build_waterfall
from protocol.receipts import Receipt, sign_receipt
from tests.billing.support import hold_request, open_run, place, settle
from tests.marketplace.api.client import Api
from tests.marketplace.web.conftest import World
from tests.marketplace.web.test_access import assert_clean


def test_a_runs_page_shows_each_call_as_the_api_does_and_closes_the_run(world: World) -> None:
    consumer = Membership.objects.get(user=world.consumer).organization
    key, _ = create_api_key(organization=consumer, name="agent", scopes=["predict"], created_by=None)
    run = open_run(key, metadata={"job": "<7>"}, name="nightly")
    fields = {"api_key_id": key.pk, "run_id": run.pk, "amount_nano_usd": 100}
    charged, running = (place(hold_request(consumer, consumer, **fields)).prediction_id for _ in range(2))
    receipt = Receipt(
        **{"jti": str(charged), "attempt": 1, "replica_id": str(charged), "iat": 1, "adapter": None, "base": "b"},
        **{"prompt_tokens": 100, "cached_tokens": 0, "completion_tokens": 9, "finish_reason": "stop"},
        **{"ttft_ms": 5, "duration_ms": 9, "queue_ms": 4, "tool_arguments": "invalid"},
    )
    settle(charged, receipt=sign_receipt(receipt, Ed25519PrivateKey.generate(), signer_id=str(charged)))

    client, path = world.client(world.consumer), f"/dashboard/runs/{run.pk}"
    listed, page = client.get("/dashboard/runs"), client.get(path)
    for response in (listed, page):
        assert response.status_code == 200
        assert_clean(response)
    text = page.content.decode()
    assert "&lt;7&gt;" in text and f"run_{run.pk.hex}" in text and "2 of 100 calls" in text
    assert f"/dashboard/receipts/{charged}" in text and f"/dashboard/receipts/{running}" not in text
    assert len(re.findall('<rect class="outside"', text)) == 2

    api = Api.of(consumer)
    shown = api.get(f"runs/run_{run.pk.hex}").json()
    calls = api.get(f"runs/run_{run.pk.hex}/calls").json()["results"]
    assert (shown["calls"], shown["held_nano_usd"], shown["status"]) == (2, 100, "open")
    assert [(one["prediction_id"], one["state"]) for one in calls] == [
        (str(charged), "charged"),
        (str(running), "running"),
    ]
    assert calls[0]["cost_nano_usd"] == shown["spent_nano_usd"] > 0 and calls[0]["prompt_tokens"] == 100
    assert [(one["queue_ms"], one["tool_arguments"]) for one in calls] == [(4, "invalid"), (None, None)]
    assert len(re.findall(r'<span class="tag bad">\s*arguments invalid\s*</span>', text)) == 1
    assert [one["id"] for one in api.get("runs").json()["results"]] == [shown["id"]]

    for user in (world.creator, world.stranger):
        assert world.client(user).get(path).status_code == 404
        assert world.client(user).post(f"{path}/close").status_code == 404
    assert client.post(f"{path}/close").status_code == 302
    assert api.post(f"runs/run_{run.pk.hex}/close").json()["status"] == "closed"
    assert [one.act for one in entries_of(organization=consumer)][:1] == ["run.closed"]
    assert "Close the run" not in client.get(path).content.decode()


def test_bars_of_a_waterfall_stay_within_it() -> None:
    begin = datetime(2026, 11, 26, tzinfo=UTC)

    def call(start: int, end: int | None, replica: int | None, first: int | None, queue: int | None = None) -> CallView:
        ended = None if end is None else begin + timedelta(milliseconds=end)
        total = None if end is None else end - start
        at = begin + timedelta(milliseconds=start)
        return CallView(uuid4(), "m", "charged", "stop", at, ended, 1, 1, 0, 1, 1, total, replica, first, queue)

    chart = build_waterfall(
        [call(0, 400, 300, 100, 50), call(100, 1_000, 5_000, 7_000, 9_000), call(200, None, None, None)],
        now=begin + timedelta(milliseconds=800),
    )
    assert chart.milliseconds == 1_000 and chart.height == 3 * ROW
    first, second, third = chart.bars
    assert (first.x, first.outside, first.queue, first.first, first.rest) == (0, 60, 30, 30, 120)
    assert (first.queue_x, first.first_x, first.rest_x) == (60, 90, 120)
    assert second.rest_x + second.rest <= WIDTH + 2 and third.outside == 360
    assert build_waterfall([], now=begin).bars == ()
