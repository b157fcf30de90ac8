"""The usage file of plans: sums by base line that add up, samples of shapes, and nobody's name."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.core.management import call_command

from billing.rollups.services import roll_up as count_usage
from marketplace.planning import usage
from marketplace.watch import rollup
from marketplace.watch.demand import DemandTally
from tests.marketplace.watch.calls import buyers, call, hours_ago, sold_version

pytestmark = pytest.mark.django_db(transaction=True)


def test_sums_add_up_and_name_nobody() -> None:
    version, (buyer, other) = sold_version(), buyers(2)
    version.report = {"rank": 8}
    version.save(update_fields=["report"])
    for hour, who, latency_class in ((30, buyer, "standard"), (30, other, "standard"), (2, buyer, "batch")):
        call(
            version,
            who,
            hours_ago(hour) + timedelta(minutes=5),
            latency_class=latency_class,
            prompt_tokens=100,
            cached_tokens=64,
            completion_tokens=7,
        )
    count_usage()
    rollup.roll_up()
    tally = DemandTally()
    tally.refused(version.pk, hours_ago(2), "batch", "no_replica", 4)
    tally.refused(version.pk, hours_ago(2), "batch", "insufficient_credit", 9)
    tally.write()
    found = usage.usage_file()
    assert (found["start"], found["hours"]) == (hours_ago(30).isoformat(), 30)
    (one,) = [base for base in found["bases"].values() if base["popularity"]]
    standard, batch = one["classes"]["standard"], one["classes"]["batch"]
    assert (standard["served"][0], sum(standard["served"])) == (2, 2)
    assert (batch["served"][28], batch["refused"][28], sum(batch["refused"])) == (1, 4, 4)
    assert one["shapes"] == {"standard": [[97, 62, 7], [97, 62, 7]], "batch": [[97, 62, 7]]}
    assert one["times"] == {"standard": [[7, 30, 100], [7, 30, 100]], "batch": [[7, 30, 100]]}
    assert one["popularity"] == [[7, 8]] and one["revenue_nano_usd"] == 3_000
    text = json.dumps(found)
    for secret in (buyer.slug, str(buyer.pk), other.slug, str(version.pk), str(version.model_id), "triage", "acme"):
        assert secret not in text


def test_the_command_counts_what_is_in_the_books_first(capsys: pytest.CaptureFixture[str]) -> None:
    version, (buyer,) = sold_version(), buyers(1)
    call(version, buyer, hours_ago(0))
    call_command("usage_file", "--with-this-hour")
    found = json.loads(capsys.readouterr().out)
    assert found["hours"] == 1 and [sum(one["classes"]["standard"]["served"]) for one in found["bases"].values()] == [1]
    call_command("usage_file")
    assert json.loads(capsys.readouterr().out)["hours"] == 0


def test_a_platform_without_calls_has_an_empty_file() -> None:
    sold_version()
    found = usage.usage_file()
    assert found["hours"] == 0 and all(not base["classes"] for base in found["bases"].values())
