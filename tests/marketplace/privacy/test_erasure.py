"""Erasure: nothing leads from the books to anybody any more, and the books are what they were."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection

from billing.integrity import find_discrepancies
from billing.models import Account, BillingProfile, CardUse, Entry, KeptAnswer, TopUp, Usage
from billing.refunds import advance_refund
from billing.services import credit_promotion
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind
from marketplace.accounts.models import ApiKey, Membership, Organization, User
from marketplace.alerts.models import Alert
from marketplace.alerts.services import tell
from marketplace.catalog.models import Model, Version
from marketplace.privacy import services
from marketplace.privacy.errors import NotErasable
from marketplace.privacy.models import Erasure
from marketplace.publishing.withdrawal import retire_version
from marketplace.receipts.keys import published_keys
from marketplace.receipts.selectors import receipt_document
from marketplace.vault.answer_keys import new_answer_key
from marketplace.vault.models import AnswerKey, DataKey
from marketplace.vault.tasks import push_forgetting
from protocol.proofs.documents import verify_document
from tests.billing.conftest import double
from tests.billing.payments import disputed, paid, refund
from tests.billing.support import hold_request, place, settle_kept
from tests.marketplace.catalog.factories import make_organization
from tests.marketplace.receipts.conftest import Market, market
from tests.marketplace.web.conftest import World, build_world

__all__ = ["double", "market"]  # the fixtures
pytestmark = pytest.mark.django_db


@pytest.fixture
def world(settings: Any) -> World:
    return build_world()


NAMES_OF_MODELS = {
    "django_session",
    "billing_usage",
    "billing_hold",
    "billing_usageday",
    "billing_earningsday",
    "billing_spantotal",
    "billing_spancustomer",
}


def everything_but_the_books() -> str:
    """Every row of every table of people and organizations, as text. Usage and its sums keep the names of models."""
    with connection.cursor() as cursor:
        texts = []
        for model in apps.get_models():
            table = model._meta.db_table
            if not model._meta.managed or table in NAMES_OF_MODELS:
                continue
            cursor.execute(f'SELECT row_to_json(t)::text FROM "{table}" t')
            texts += [row[0] for row in cursor.fetchall()]
    return "\n".join(texts)


def test_an_erased_person_is_a_pseudonym_without_password_memberships_or_rights(world: World) -> None:
    client = world.client(world.developer)
    assert client.get("/dashboard/").status_code == 200
    services.erase_user(user=world.developer, by=world.developer.pk)
    assert world.developer.email not in everything_but_the_books()
    row = User.objects.get(pk=world.developer.pk)
    assert not row.is_active and not row.has_usable_password()
    assert not Membership.objects.filter(user=row).exists()
    assert client.get("/dashboard/").status_code == 302  # the session has ended
    assert Erasure.objects.get().subject_id == row.pk


def test_whoever_alone_owns_an_organization_stays_until_it_is_deleted(world: World) -> None:
    with pytest.raises(NotErasable, match="northbank"):
        services.erase_user(user=world.consumer, by=None)
    assert User.objects.get(pk=world.consumer.pk).is_active and not Erasure.objects.exists()
    Membership.objects.filter(user=world.developer).update(role=Membership.Role.OWNER)
    services.erase_user(user=world.consumer, by=None)
    assert not User.objects.get(pk=world.consumer.pk).is_active


def test_an_erased_consumer_leaves_no_name_and_its_books_are_what_they_were(world: World) -> None:
    BillingProfile.objects.create(
        organization=world.buyer, legal_name="Northbank plc", line1="1 High Street", city="Leeds", country="GB"
    )
    balances = list(Account.objects.order_by("pk").values_list("pk", "posted", "held"))
    entries, usage = Entry.objects.count(), list(Usage.objects.order_by("pk").values())
    erasure = services.erase_organization(organization=world.buyer, by=world.consumer.pk, give_up=True)
    left = everything_but_the_books()
    for word in ("northbank", "Northbank", "High Street", "Leeds", "billing service"):
        assert word not in left, word
    assert erasure.left_nano_usd == sum(posted for _, posted, _ in balances if posted > 0)
    assert list(Account.objects.order_by("pk").values_list("pk", "posted", "held")) == balances
    assert Entry.objects.count() == entries and list(Usage.objects.order_by("pk").values()) == usage
    assert ApiKey.objects.get(pk=world.key.pk).revoked_at is not None
    assert find_discrepancies() == [] or all(one.kind != "ledger_sum" for one in find_discrepancies())


def test_replicas_are_told_to_forget_what_an_erased_organization_asked(
    world: World, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    told: list[str] = []
    monkeypatch.setattr(push_forgetting, "delay", told.append)
    with django_capture_on_commit_callbacks(execute=True):
        services.erase_organization(organization=world.buyer, by=None, give_up=True)
        assert not told, "an erasure that is rolled back tells nobody"
    assert told == [str(world.buyer.pk)]


def test_an_erased_creators_weights_are_shredded_and_its_listings_blank(world: World) -> None:
    with pytest.raises(NotErasable, match="on sale"):
        services.erase_organization(organization=world.seller, by=None)
    assert DataKey.objects.count() == 2 and Model.objects.get().title != "erased"
    for version in Version.objects.filter(state=Version.State.PUBLISHED):
        retire_version(version=version, announced=True)
    told = {"kind": "model.drift", "once": "1", "subject": "ledgerline/transactions", "text": "x", "data": {}}
    tell(organization_id=world.seller.pk, **told)
    services.erase_organization(organization=world.seller, by=None)
    assert not DataKey.objects.exists() and not Alert.objects.exists()
    listing = Model.objects.get()
    assert (listing.title, listing.card_markdown, listing.visibility) == ("erased", "", "private")
    assert "edgerline" not in everything_but_the_books().replace(listing.slug, "")


def test_an_erased_consumers_kept_answers_and_their_key_are_gone(world: World) -> None:
    for organization in (world.buyer, world.seller):
        AnswerKey.objects.create(organization=organization, wrapped_key=new_answer_key(organization.pk))
        credit_promotion(organization=organization, amount_nano_usd=10_000, reference=str(organization.pk))
        settle_kept(place(hold_request(organization, world.seller, idempotency_key="key")).prediction_id)
    services.erase_organization(organization=world.buyer, by=None, give_up=True)
    assert list(AnswerKey.objects.values_list("organization", flat=True)) == [world.seller.pk]
    assert list(KeptAnswer.objects.values_list("organization_id", flat=True)) == [world.seller.pk]


def _open_hold(world: World) -> None:
    place(hold_request(world.buyer, world.seller))


def _open_payment(world: World) -> None:
    TopUp.objects.create(organization=world.buyer, amount_cents=500)


def _nothing(world: World) -> None:
    """The balance alone is in the way."""


@pytest.mark.parametrize(
    ("open_", "give_up", "reason"),
    [(_open_hold, True, "in flight"), (_open_payment, True, "payment is open"), (_nothing, False, "balance left")],
)
def test_nothing_is_erased_while_something_is_open(world: World, open_: Any, give_up: bool, reason: str) -> None:
    open_(world)
    with pytest.raises(NotErasable, match=reason):
        services.erase_organization(organization=world.buyer, by=None, give_up=give_up)
    row = Organization.objects.get(pk=world.buyer.pk)
    assert row.slug == "northbank" and row.memberships.exists() and not Erasure.objects.exists()


def test_no_organization_is_erased_while_a_refund_or_a_dispute_is_open(world: World, double: StripeDouble) -> None:
    top_up = paid(double, world.buyer)
    double.faults.requests = [Fault(FaultKind.DROP_BEFORE_COMMIT, "/v1/refunds", times=3)]
    waiting = refund(world.buyer, top_up, 500)
    with pytest.raises(NotErasable, match="refund is on its way"):
        services.erase_organization(organization=world.buyer, by=None, give_up=True)
    advance_refund(refund_id=waiting.pk)
    disputed(double, top_up, 100)
    with pytest.raises(NotErasable, match="disputed"):
        services.erase_organization(organization=world.buyer, by=None, give_up=True)
    assert not Erasure.objects.exists()


def test_a_receipt_of_before_an_erasure_still_verifies_and_has_the_same_statement(market: Market) -> None:
    charge = market.charge()
    before = receipt_document(market.buyer, charge.prediction_id)
    services.erase_organization(organization=market.buyer, by=None, give_up=True)
    found = verify_document(before, published_keys()).charge
    again = receipt_document(Organization.objects.get(pk=market.buyer.pk), charge.prediction_id)
    assert verify_document(again, published_keys()).charge == found
    assert market.buyer.slug not in json.dumps(before.decode())


def test_the_command_erases_and_refuses_with_the_reason(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("erase", "user", world.developer.email)
    call_command("erase", "organization", "northbank", give_up_balance=True)
    assert capsys.readouterr().out.count("erased: ") == 2
    for arguments, reason in (
        (("user", "nobody@example.com"), "no such user"),
        (("organization", "nobody"), "no such organization"),
        (("organization", "ledgerline"), "on sale"),
    ):
        with pytest.raises(CommandError, match=reason):
            call_command("erase", *arguments)
    assert Erasure.objects.count() == 2


def test_an_erased_organization_leaves_no_card_behind(double: StripeDouble) -> None:
    organization, other = make_organization("gone"), make_organization("stays")
    for one in (organization, other):
        paid(double, one)
    services.erase_organization(organization=organization, by=None, give_up=True)
    assert list(CardUse.objects.values_list("organization__slug", flat=True)) == ["stays"]
    assert TopUp.objects.get(organization=organization).card_fingerprint == ""
    assert TopUp.objects.get(organization=other).card_fingerprint
