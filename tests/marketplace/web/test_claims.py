"""No sentence on a page says what is not so."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from billing.limited_keys import set_key_budget
from marketplace.accounts.models import ApiKey, User
from marketplace.catalog.models import Version
from marketplace.publishing.gate import publish_version
from tests.billing.support import insert_usage
from tests.marketplace.evals.factories import make_evaluation
from tests.marketplace.web.conftest import World

MODEL = "/models/ledgerline/transactions"


def text(world: World, path: str, user: User | None = None) -> str:
    """The words of a page, without tags and with single spaces."""
    page = world.client(user).get(path).content.decode()
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_a_measurement_of_an_older_version_is_not_called_the_models(world: World) -> None:
    assert "68.4 points above the base on 120 rows" in text(world, MODEL)
    publish_version(version=world.verified)
    page = text(world, MODEL)
    assert "The platform has not measured version 2. Version 1" in page and "Version 1, an older one, on 120" in page
    assert "points above the base" not in page and "This model" not in page
    for path in ("/", "/models/"):
        assert "not measured yet" in text(world, path) and "94.2 %" not in text(world, path)


def test_a_model_that_nobody_measured_says_so(world: World) -> None:
    Version.objects.filter(pk=world.published.pk).update(state="retired")  # its figure went with it
    publish_version(version=world.verified)
    for path in (MODEL, "/models/", "/"):
        page = text(world, path)
        assert not re.search(r"[0-9] ?%", page) and "points above" not in page
    assert "The platform has not measured version 2." in text(world, MODEL)


@pytest.mark.parametrize(("correct", "words"), [(19, "10.0 points below the base"), (31, "Level with the base")])
def test_a_model_that_is_no_better_than_its_base_is_not_said_to_be(world: World, correct: int, words: str) -> None:
    make_evaluation(world.published, correct=correct)
    page = text(world, MODEL)
    assert words in page and "above the base" not in page


def test_the_words_of_a_card_are_its_creators(world: World) -> None:
    assert "Written by Ledgerline; the platform has not checked it." in text(world, MODEL)


def test_only_versions_that_answer_are_said_to_be_callable(world: World) -> None:
    page = text(world, MODEL, world.creator)
    assert "call it as ledgerline/transactions@1" in page
    assert "call it as ledgerline/transactions@2" not in page and "Version 2" in page
    Version.objects.filter(pk=world.published.pk).update(state="retired")
    assert "call it as" not in text(world, MODEL, world.creator)


def test_a_key_that_has_expired_is_not_counted_as_active(world: World) -> None:
    assert "Active keys 1 " in text(world, "/dashboard/", world.consumer)
    ApiKey.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert "Active keys 0 " in text(world, "/dashboard/", world.consumer)


def test_a_key_with_a_limit_in_all_is_not_said_to_have_none(world: World) -> None:
    assert "no limit" in text(world, "/dashboard/keys", world.consumer)
    set_key_budget(api_key=world.key, monthly_limit_nano_usd=None, total_limit_nano_usd=3 * 10**9)
    page = text(world, "/dashboard/keys", world.consumer)
    assert "$0.00 of $3.00 in all" in page and "no limit" not in page


def test_a_receipt_adds_up_to_its_tokens_and_tells_signed_from_charged(world: World) -> None:
    row = world.usage[0]
    path = f"/dashboard/receipts/{row.prediction_id}"
    page = text(world, path, world.consumer)
    assert "signed 96 prompt and 9 answer tokens" in page and "You are charged for" not in page
    assert "Prompt, the part that was not cached 64 " in page
    # A client that hung up pays for the tokens that reached it, whatever the replica signed.
    fields = {field.name: getattr(row, field.name) for field in row._meta.concrete_fields if field.name != "pk"}
    changes = {
        "created_at": timezone.now(),
        "completion_tokens": 4,
        "organization_id": world.seller.pk,
    }
    cut = insert_usage(**(fields | changes))
    page = text(world, f"/dashboard/receipts/{cut.prediction_id}", world.creator)
    assert "signed 96 prompt and 9 answer tokens" in page
    assert "You are charged for the 4 answer tokens that were delivered to you." in page
