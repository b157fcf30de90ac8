"""The page of a model in use shows blocks alone, to its creator alone; alarms are set there; the feed of alerts."""

from __future__ import annotations

from marketplace.alerts.models import Alert, Mute, Seen
from marketplace.alerts.services import tell
from marketplace.watch.models import Hour, HourCaller, Threshold, Thumb, ThumbTotal
from tests.marketplace.watch.calls import hours_ago
from tests.marketplace.watch.shown import show_use
from tests.marketplace.web.conftest import World
from tests.marketplace.web.test_access import assert_clean

PAGE = "/dashboard/models/transactions/in-use"
FORM = {"errors": "5", "latency": "900", "valid": "", "drift": "0.25", "spend": ""}


def test_a_version_in_use_is_shown_for_each_range(world: World) -> None:
    show_use(world.published)
    client = world.client(world.creator)
    for days, label in ((1, "24 h"), (7, "7 d"), (30, "30 d"), (99, "7 d")):
        response = client.get(f"{PAGE}?days={days}")
        text = response.content.decode()
        assert response.status_code == 200 and label in text
        assert_clean(response)
        for heading in ("Requests per hour", "Answers", "Drift", "Prompt lengths", "How calls ended", "groceries"):
            assert heading in text
    assert "Drift (PSI)" in text and "91.8 %" in text, "thumbs: 212 of 231"


def test_the_listing_shows_the_share_of_thumbs_once_there_are_enough(world: World) -> None:
    Thumb.objects.create(
        prediction_id=world.usage[0].prediction_id,
        organization_id=world.buyer.pk,
        version_id=world.published.pk,
        is_up=False,
    )
    page = "/models/ledgerline/transactions"
    assert "thumbs" not in world.client(None).get(page).content.decode()
    ThumbTotal.objects.create(version_id=world.published.pk, up=18, down=2)
    text = " ".join(world.client(None).get(page).content.decode().split())
    assert "<strong>90 %</strong> of 20 thumbs by paying customers point up" in text


def test_hours_that_are_no_block_yet_are_nowhere(world: World) -> None:
    Hour.objects.create(version_id=world.published.pk, hour=hours_ago(3), calls=977_001, refused={"secret_code": 5})
    HourCaller.objects.create(
        version_id=world.published.pk, hour=hours_ago(3), organization_id=world.buyer.pk, requests=977_001
    )
    client = world.client(world.creator)
    answers = [client.get(PAGE), client.get("/api/v1/models/ledgerline/transactions/in-use?days=30")]
    for response in answers:
        assert response.status_code == 200
        text = response.content.decode()
        assert "977001" not in text and "977,001" not in text and "secret_code" not in text
    assert "Nothing to show yet" in answers[0].content.decode()
    assert answers[1].json()["total"]["calls"] == 0 and answers[1].json()["blocks"] == []


def test_only_its_creator_sees_a_model_in_use_and_sets_its_alarms(world: World) -> None:
    show_use(world.published)
    for user in (world.consumer, world.stranger, world.staff):
        assert world.client(user).get(PAGE).status_code == 404
        assert world.client(user).post(PAGE, FORM).status_code == 404
        answer = world.client(user).get("/api/v1/models/ledgerline/transactions/in-use")
        assert answer.status_code == 404
    assert not Threshold.objects.exists()


def test_thresholds_are_set_on_the_page_and_a_wrong_one_changes_nothing(world: World) -> None:
    client = world.client(world.creator)
    refused = client.post(PAGE, FORM | {"errors": "101"})
    assert refused.status_code == 400 and "at most 100" in refused.content.decode() and not Threshold.objects.exists()
    assert client.post(PAGE, FORM).status_code == 302
    values = dict(Threshold.objects.values_list("metric", "value"))
    assert values == {"errors": 5, "latency": 900, "valid": None, "drift": 0.25, "spend": None}
    alarms = client.get("/api/v1/models/ledgerline/transactions/alarms").json()
    assert {line["metric"]: line["threshold"] for line in alarms} == values
    put = client.put("/api/v1/models/ledgerline/transactions/alarms", {"spend": 2.5}, content_type="application/json")
    assert put.status_code == 200 and Threshold.objects.get(metric="spend").value == 2.5
    wrong = client.put("/api/v1/models/ledgerline/transactions/alarms", {"spend": -1}, content_type="application/json")
    assert wrong.status_code == 400 and Threshold.objects.get(metric="spend").value == 2.5


def test_the_feed_is_read_once_and_kinds_are_muted(world: World) -> None:
    for once in "12":
        tell(
            organization_id=world.seller.pk,
            kind="model.drift",
            once=once,
            subject=f"acme <b>{once}</b>",
            text="Line",
            data={"n": 1},
        )
    client = world.client(world.creator)
    assert '<span class="count">2' in client.get("/dashboard/").content.decode()
    page = client.get("/dashboard/alerts")
    assert_clean(page)
    assert page.content.decode().count('class="new"') == 2 and "acme &lt;b&gt;1" in page.content.decode()
    assert '<span class="count">' not in client.get("/dashboard/").content.decode()
    assert client.get("/dashboard/alerts").content.decode().count('class="new"') == 0
    assert Seen.objects.get().alert_id == Alert.objects.latest("id").pk
    assert client.post("/dashboard/alerts/model.drift", {"muted": "1"}).status_code == 302
    assert Mute.objects.get().kind == "model.drift"
    assert client.post("/dashboard/alerts/no.kind", {"muted": "1"}).status_code == 404
    assert client.post("/dashboard/alerts/model.drift", {"muted": "0"}).status_code == 302
    assert not Mute.objects.exists()
    other = world.client(world.consumer)
    assert "acme" not in other.get("/dashboard/alerts").content.decode()


def test_a_developer_reads_no_alerts_about_money(world: World) -> None:
    tell(organization_id=world.buyer.pk, kind="budget.alert", once="1", subject="Spent", text="x", data={})
    client = world.client(world.developer)
    assert "Spent" not in client.get("/dashboard/alerts").content.decode()
    assert client.post("/dashboard/alerts/budget.alert", {"muted": "1"}).status_code == 404
    assert not Mute.objects.exists()
