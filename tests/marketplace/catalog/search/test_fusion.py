"""The three arms, their fusion, filters, and what no search may find."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from django.db import connection

from marketplace.accounts.models import Organization
from marketplace.catalog import selectors, services
from marketplace.catalog.models import Model, Passage
from marketplace.catalog.search import Filters, find, fusion
from marketplace.catalog.search.fusion import ARMS, CANDIDATES, K
from marketplace.catalog.search.spelling import reconcile
from marketplace.catalog.services.listings import ListingText
from marketplace.privacy.services import erase_organization
from marketplace.publishing import services as publishing
from tests.marketplace.catalog.factories import make_version
from tests.marketplace.catalog.search.conftest import listing, slugs

pytestmark = pytest.mark.django_db
Embed = Callable[[], int]


@pytest.fixture
def market(embed: Embed) -> dict[str, Model]:
    made = {
        "triage": listing(
            "triage", title="Patient triage", summary="Message to specialty.", industry="health", tags=["json"]
        ),
        "bank": listing("bank", title="Bank classifier", summary="Account lines to categories.", industry="finance"),
        "router": listing(
            "router", title="Phone ticket router", summary="Calls to desks.", industry="telecom", base="other"
        ),
    }
    embed()
    return made


def test_each_arm_finds_what_it_is_for(market: dict[str, Model]) -> None:
    def arms(query: str) -> dict[str, frozenset[str]]:
        names = dict(Model.objects.values_list("pk", "slug"))
        return {names[hit.model_id]: hit.arms for hit in find(query)}

    assert arms("categories") == {"bank": frozenset({"words", "spelling"})}
    assert arms("pacient triaje") == {"triage": frozenset({"spelling"})}
    assert arms("sick") == {"triage": frozenset({"meaning"})}
    assert arms("triage")["triage"] == {"words", "spelling"}
    assert arms("bank") == {"bank": frozenset(ARMS)}


def test_typing_errors_half_words_accents_and_names_of_organizations_find_the_model(market: dict[str, Model]) -> None:
    assert slugs("pacient triaje") == slugs("triaje of pacient") == slugs("tria") == slugs("pátient tri") == ["triage"]
    Organization.objects.filter(pk=market["bank"].organization_id).update(name="Zürcher Kantonalbank")
    assert slugs("zurcher") == slugs("zürch") == slugs("kantonalbnk") == ["bank"]


def test_what_means_the_same_is_found_without_a_common_word_and_says_so(market: dict[str, Model]) -> None:
    (found,) = selectors.published_models(query="ill doctors")
    assert (found.slug, found.found_by_meaning) == ("triage", True)  # type: ignore[attr-defined]
    (found,) = selectors.published_models(query="patient triage")
    assert (found.slug, found.found_by_meaning) == ("triage", False)  # type: ignore[attr-defined]


@pytest.mark.parametrize("query", ["xyzzy", "blorf snarg", "qqq", "", "   ", "!!!", "the of and"])
def test_nonsense_finds_nothing(market: dict[str, Model], query: str) -> None:
    assert find(query) == []


def test_filters_act_inside_every_arm_so_that_others_take_no_places(
    embed: Embed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        listing(f"bank-{number}", title=f"Bank money account {number}", industry="finance")
    listing("wanted", title="Bank helper", industry="Retail", tags=["Rare"], base="other")
    embed()
    for name in ("_WORDS", "_SPELLING", "_MEANING"):  # as few places as there would be listings among ten thousand
        small = getattr(fusion, name).replace(f"LIMIT {CANDIDATES}", "LIMIT 2")
        monkeypatch.setattr(fusion, name, small.replace("LIMIT 1000", "LIMIT 2"))
    for query in ("bank", "bnak helpper bank", "ledger"):
        assert "wanted" not in slugs(query) or query != "ledger"
        for filters in ({"industry": "retail"}, {"base": "other"}, {"base": "cd" * 32}, {"tag": "RARE"}):
            assert slugs(query, **filters) == ["wanted"], (query, filters)
    assert slugs("bank", industry="retail", tag="common") == []


def test_the_order_is_that_of_reciprocal_rank_fusion(embed: Embed) -> None:
    for number, title in enumerate(
        ("Bank", "Bank account", "Account ledger", "Money bank statement", "Bnak account", "Ledger")
    ):
        listing(f"m{number}", title=title, summary="statement " * (number % 3))
    embed()
    for query in ("bank account", "bank", "account ledger"):
        score: dict[object, float] = defaultdict(float)
        for arm in ARMS:
            for place, hit in enumerate(find(query, arms=[arm]), 1):
                score[hit.model_id] += 1 / (K + place)
        expected = sorted(score, key=lambda one: (-round(score[one], 12), one))
        assert [hit.model_id for hit in find(query)] == expected, query


def test_private_unlisted_and_unpublished_models_are_found_by_no_arm_and_have_no_passages(
    market: dict[str, Model], embed: Embed
) -> None:
    for visibility in ("private", "unlisted"):
        listing(visibility, title="Patient triage clinic", visibility=visibility)
    listing("draft", title="Patient triage clinic", state="verified")
    embed()
    queries = ("patient triage clinic", "pacient triaje", "doctor")
    assert {slug for query in queries for slug in slugs(query)} == {"triage"}
    assert set(Passage.objects.values_list("model__slug", flat=True)) == {"triage", "bank", "router"}

    services.update_model(model=market["triage"], text=ListingText(visibility="private"))
    assert [find(query) for query in queries] == [[], [], []]
    assert not Passage.objects.filter(model=market["triage"]).exists(), "gone with the change itself"
    services.update_model(model=market["triage"], text=ListingText(visibility="public"))
    assert slugs("triage") == ["triage"], "words find it at once"
    assert slugs("doctor") == [] and embed() == 1 and slugs("doctor") == ["triage"]

    publishing.retire_version(version=market["triage"].versions.get())
    assert [find(query) for query in queries] == [[], [], []]
    assert not Passage.objects.filter(model=market["triage"]).exists()
    make_version(market["triage"])
    assert slugs("triage") == ["triage"]


def test_an_erased_organization_leaves_no_passage_and_no_spelling(market: dict[str, Model]) -> None:
    organization = market["triage"].organization
    publishing.retire_version(version=market["triage"].versions.get())
    erase_organization(organization=organization, by=None)
    assert not Passage.objects.filter(model=market["triage"]).exists()
    assert slugs("patient triage") == slugs(organization.slug) == []
    with connection.cursor() as cursor:
        cursor.execute("SELECT word FROM catalog_spelling")
        words = {word for (word,) in cursor.fetchall()}
    assert "triage" not in words and "bank" in words
    assert reconcile() == 0, "idempotent"


@pytest.mark.parametrize(
    "query",
    [
        "patient & triage | !bank",
        "((((((",
        "a:* & b:*",
        "'; DROP TABLE catalog_model; --",
        "%s %(text)s {filter} %",
        'patient "tri',
        "\x00patient\x00 triage",
        "patient " * 1_500,
        "\ud800 triage",
        "🙂🙂🙂 triage",
        "ŉ ʼn ½ ﬀ x'y",
        "<script>alert(1)</script>",
        "-triage",
        "triage OR bank",
        "\\' \\",
    ],
)
def test_hostile_queries_break_nothing(market: dict[str, Model], query: str) -> None:
    before = Model.objects.count()
    for filters in ({}, {"industry": query[:40]}, {"tag": query[:30], "base": query[:100]}):
        list(
            selectors.published_models(query=query, filters=Filters(**filters), ordering="relevance")
        ) if "\ud800" not in query else slugs(query)
    assert Model.objects.count() == before


def test_operators_ask_for_words_alone(market: dict[str, Model]) -> None:
    assert slugs("triage OR bank") and set(slugs("triage OR bank")) == {"triage", "bank"}
    assert slugs('"patient triage"') == ["triage"] and slugs('"triage patient"') == []
    assert slugs("patient -triage") == []
