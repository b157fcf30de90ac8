"""A creator's page of a version: rollout, rollback, changelog and end; and the versions that everybody sees."""

from __future__ import annotations

from datetime import timedelta

from django.test import Client
from django.utils import timezone

from marketplace.catalog import selectors
from marketplace.catalog.models import Model, Rollout, Version
from tests.marketplace.catalog.factories import PASSWORD
from tests.marketplace.watch.shown import show_use
from tests.marketplace.web.conftest import World
from tests.marketplace.web.sessions import stale
from tests.marketplace.web.test_access import assert_clean

PAGE = "/dashboard/models/transactions/versions"
PUBLIC = "/models/ledgerline/transactions"


def fresh(world: World) -> Client:
    """The creator, who has just typed the password."""
    client = world.client(world.creator)
    assert client.post("/accounts/reauthenticate/", {"password": PASSWORD}).status_code == 302
    return client


def text_of(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200
    assert_clean(response)
    return " ".join(response.content.decode().split())


def default(world: World) -> int:
    found = selectors.default_version(model=Model.objects.get(pk=world.model.pk))
    assert found is not None
    return found.number


def test_a_version_is_rolled_out_and_back_in_one_click(world: World) -> None:
    client = fresh(world)
    assert "Publish to this part" in text_of(client, f"{PAGE}/2")
    assert client.post(f"{PAGE}/2/rollout", {"percent": "0"}).status_code == 302
    assert client.post(f"{PAGE}/2/rollout", {"percent": "200"}).status_code == 400
    assert not Rollout.objects.exists()
    client.post(f"{PAGE}/2/rollout", {"percent": "10"})
    world.verified.refresh_from_db()
    assert world.verified.state == "published" and default(world) == 1
    show_use(world.published, shifted=False)
    Rollout.objects.update(started_at=timezone.now() - timedelta(days=3))
    Version.objects.filter(number=2).update(published_at=timezone.now() - timedelta(days=3))
    page = text_of(client, f"{PAGE}/2")
    assert "10 % of the customers" in page and "too few calls to show" in page and "Roll back" in page
    assert "91.8 %" in page, "thumbs of the baseline"
    assert "10 % of the customers get it" in text_of(world.client(None), PUBLIC)
    assert "version 2</a> is rolled out" in text_of(client, f"{PAGE}/1")
    client.post(f"{PAGE}/2/rollout", {"percent": "0"})
    assert Rollout.objects.get().outcome == "rolled_back" and default(world) == 1
    client.post(f"{PAGE}/2/default")
    assert default(world) == 2
    client.post(f"{PAGE}/1/default")
    assert default(world) == 1


def test_an_end_is_announced_on_the_page_and_everybody_reads_it(world: World) -> None:
    client = fresh(world)
    tomorrow = timezone.now() + timedelta(days=1)
    answer = client.post(f"{PAGE}/1/end", {"ends_on": f"{tomorrow:%Y-%m-%d}", "replacement": ""}, follow=True)
    assert "or later" in answer.content.decode()
    ends = timezone.now() + timedelta(days=60)
    client.post(f"{PAGE}/1/end", {"ends_on": f"{ends:%Y-%m-%d}", "replacement": ""})
    said = f"{ends:%-d %b %Y}, 00:00 UTC"
    assert said in text_of(client, f"{PAGE}/1") and said in text_of(world.client(None), PUBLIC)
    client.post(f"{PAGE}/1/keep")
    assert said not in text_of(world.client(None), PUBLIC)


def test_a_changelog_is_edited_until_it_is_published_and_scores_stand_beside_it(world: World) -> None:
    client = fresh(world)
    client.post(f"{PAGE}/2/changelog", {"changelog": "Twelve <b>new</b> labels."})
    assert "Twelve &lt;b&gt;new&lt;/b&gt; labels." in text_of(client, f"{PAGE}/2")
    client.post(f"{PAGE}/1/changelog", {"changelog": "Other words."})
    page = text_of(world.client(None), PUBLIC)
    assert "First release." in page and "Other words." not in page and "Twelve" not in page
    assert "94.2 % right</a> of 120 rows" in page


def test_only_its_creator_acts_and_only_after_the_password(world: World) -> None:
    for user in (world.consumer, world.stranger, world.staff, world.developer):
        assert world.client(user).get(f"{PAGE}/1").status_code == 404
        world.client(user).post(f"{PAGE}/2/rollout", {"percent": "10"})
    answer = stale(world.client(world.creator))
    assert "/reauthenticate" in answer.post(f"{PAGE}/2/rollout", {"percent": "10"}).headers["Location"]
    assert not Rollout.objects.exists()
    assert fresh(world).get(f"{PAGE}/99").status_code == 404
