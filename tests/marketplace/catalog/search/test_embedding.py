"""Passages follow the texts: once, again after a change, and never for what nobody may find."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection

from marketplace.accounts.models import Organization
from marketplace.catalog import services, tasks
from marketplace.catalog.models import Model, Passage
from marketplace.catalog.search import embedding, encoder, vectors
from marketplace.catalog.services.listings import ListingText
from tests.marketplace.catalog.search.conftest import ListedMeanings, listing, slugs

pytestmark = pytest.mark.django_db


def rows() -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, model_id, place, embedding::text FROM catalog_passage ORDER BY model_id, place")
        return cursor.fetchall()


def test_the_task_is_idempotent_and_a_changed_text_is_embedded_again(
    embed: Callable[[], int], meanings: ListedMeanings
) -> None:
    model = listing("triage", title="Triage", card_markdown="For the sick.\n\n" + "More words. " * 100)
    assert slugs("triage") == ["triage"], "words find it before the task has run"
    assert embed() == 1
    first = rows()
    assert len(first) > 2, "the card has passages of its own"
    meanings.texts.clear()
    assert embed() == 0 and rows() == first and meanings.texts == []

    services.set_price(model=model, input_micro_usd_per_mtok=1, output_micro_usd_per_mtok=1)
    Model.objects.filter(pk=model.pk).update(example_messages=[])
    assert embed() == 0, "the text is the same"

    services.update_model(model=model, text=ListingText(title="Bank ledger", card_markdown=""))
    assert embed() == 1 and len(rows()) == 1
    assert slugs("money") == ["triage"] and slugs("doctor") == []


def test_the_best_passage_counts(embed: Callable[[], int]) -> None:
    listing("deep", title="Assistant", card_markdown="Nothing of it. " * 90 + "\n\n" + "A doctor is sick. " * 25)
    embed()
    assert slugs("sick") == ["deep"]


def test_a_text_that_changes_while_it_is_encoded_is_left_to_the_next_run(
    embed: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = listing("triage", title="Patient triage")
    cut = embedding.cut

    def meanwhile(**text: object) -> list[str]:
        Model.objects.filter(pk=model.pk).update(summary="Changed.")
        return cut(**text)  # type: ignore[arg-type]

    monkeypatch.setattr(embedding, "cut", meanwhile)
    assert embed() == 0 and rows() == []
    monkeypatch.setattr(embedding, "cut", cut)
    assert embed() == 1


def test_an_encoder_of_another_name_makes_all_passages_again(
    embed: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    listing("triage")
    assert embed() == 1
    monkeypatch.setattr(encoder, "NAME", "another")
    assert embed() == 1 and embed() == 0


def test_without_an_encoder_nothing_is_stored_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    vectors.forget_answer()
    listing("triage", title="Patient triage")
    monkeypatch.setattr(embedding, "_said", set())
    for _ in range(3):
        assert tasks.embed_new_listings() == 0
    assert [record.getMessage() for record in caplog.records].count(
        "new listings are found by words and spelling, not by meaning: SEARCH_ENCODER is off"
    ) == 1
    assert not Passage.objects.exists() and slugs("pacient triage") == ["triage"] and slugs("doctor") == []


def test_without_the_column_of_vectors_search_has_words_and_spelling(embed: Callable[[], int]) -> None:
    from tests.database import as_owner

    listing("triage", title="Patient triage")
    embed()
    with as_owner(), connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE catalog_passage DROP COLUMN embedding")
    vectors.forget_answer()
    assert embed() == 0
    assert slugs("triage") == slugs("pacient triaje") == ["triage"] and slugs("doctor") == []
    with as_owner(), connection.cursor() as cursor:  # pgvector was installed, and `migrate` ran again
        vectors.add_vectors(cursor)
        vectors.add_vectors(cursor)
    vectors.forget_answer()
    assert slugs("doctor") == []
    Model.objects.update(summary="New.")
    assert embed() == 1 and slugs("doctor") == ["triage"]


def test_passages_are_the_applications_and_vectors_cannot_be_changed_in_place(embed: Callable[[], int]) -> None:
    from django.db import DatabaseError, transaction

    listing("triage")
    embed()
    for statement in ("UPDATE catalog_passage SET place = 9", "UPDATE catalog_searchtext SET listed = true"):
        with (
            pytest.raises(DatabaseError, match="permission denied"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)


def test_a_name_that_changes_is_found_at_once(embed: Callable[[], int]) -> None:
    model = listing("triage")
    Organization.objects.filter(pk=model.organization_id).update(name="Otterworks")
    assert slugs("otterwroks") == slugs("otterw") == ["triage"]
