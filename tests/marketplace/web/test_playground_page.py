"""Kept prompts: encrypted at rest, pinned to versions, in the organization alone; the playground shows them."""

from __future__ import annotations

import pytest

from marketplace.prompts import services
from marketplace.prompts.models import Prompt
from marketplace.prompts.services import Texts, keep_prompt
from tests.marketplace.api.client import Api
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.django_db
PATH = "/dashboard/playground"
NAME = "ledgerline/transactions"


def keep(world: World, **changes: str) -> object:
    form = {"name": "Groceries", "message": "POS 4821 <b>Northgate</b>", "system": "", **changes}
    return world.client(world.consumer).post(f"{PATH}/keep?model={NAME}", form, follow=True)


def test_a_kept_prompt_comes_back_with_the_version_it_was_tried_on(world: World) -> None:
    page = keep(world).content.decode()
    assert "POS 4821 &lt;b&gt;Northgate" in page and f"{NAME}@1" in page
    row = Prompt.objects.get()
    assert row.model_names == [f"{NAME}@1"] and b"4821" not in bytes(row.sealed)
    assert f'data-model="{NAME}@1"' in page


def test_a_prompt_that_cannot_be_kept_says_why_and_keeps_nothing(world: World) -> None:
    for changes in ({"name": " "}, {"message": ""}, {"message": "x" * 20_001}):
        assert b"Nothing was kept" in keep(world, **changes).content
    assert not Prompt.objects.exists()
    keep(world)
    assert b"prompt of this name is kept already" in keep(world).content
    assert Prompt.objects.count() == 1


def test_there_is_a_most(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MAX_PROMPTS", 1)
    keep(world)
    assert b"may keep 1 prompts" in keep(world, name="another").content
    assert Prompt.objects.count() == 1


def test_lanes_are_models_that_the_viewer_may_call_four_at_most(world: World) -> None:
    client = world.client(world.consumer)
    page = client.get(f"{PATH}?model={NAME}&model=no/such&model={NAME}@1&model=x&model={NAME}@9")
    assert [lane.model_name for lane in page.context["lanes"]] == [NAME, f"{NAME}@1"]
    assert page.context["missing"] == ["no/such", "x"]
    world.model.visibility = "private"
    world.model.save()
    assert client.get(f"{PATH}?model={NAME}").context["lanes"] == []


def test_strangers_prompts_are_not_there(world: World) -> None:
    keep(world)
    row = Prompt.objects.get()
    stranger = world.client(world.stranger)
    assert stranger.get(f"{PATH}?prompt={row.pk}").status_code == 404
    assert stranger.post(f"{PATH}/prompts/{row.pk}/delete").status_code == 404
    assert stranger.get(f"{PATH}?prompt=nonsense").status_code == 404
    assert Prompt.objects.exists()
    assert world.client(world.consumer).post(f"{PATH}/prompts/{row.pk}/delete").status_code == 302
    assert not Prompt.objects.exists()


def test_the_api_does_the_same(world: World) -> None:
    api = Api.of(world.buyer, "predict")
    body = {"name": "One", "message": "hi", "models": [f"{NAME}@1"]}
    made = api.post("prompts", body)
    assert made.status_code == 201 and made.json()["message"] == "hi"
    assert api.post("prompts", body).status_code == 409
    assert api.post("prompts", {**body, "name": "Two", "models": ["nonsense"]}).json()["error"]["param"] == "models"
    (row,) = api.get("prompts").json()["results"]
    assert row == {key: made.json()[key] for key in ("id", "name", "models", "created_at")}
    assert api.get(f"prompts/{row['id']}").json()["message"] == "hi"
    assert api.call("DELETE", f"prompts/{row['id']}").status_code == 204
    keep_prompt(organization=world.seller, by=None, name="Theirs", texts=Texts("x"), models=[NAME])
    assert api.get("prompts").json()["results"] == []
