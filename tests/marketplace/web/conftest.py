"""One small world for the page tests: a creator who sells, a consumer who bought, a member of staff, a stranger."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import jwt
import pytest
from django.test import Client
from django.utils import timezone

from billing.auto_top_ups import set_auto_top_up
from billing.ledger import Line, get_account, post_transaction
from billing.lots import deposit
from billing.models import (
    Account,
    Dispute,
    LedgerTransaction,
    Lot,
    Payout,
    PayoutAccount,
    SavedCard,
    TopUp,
    Usage,
)
from billing.payouts.services import start_payout
from billing.periods import post_entries
from marketplace.accounts import services as accounts
from marketplace.accounts.models import ApiKey, Membership, Organization, User
from marketplace.catalog import services as catalog
from marketplace.catalog.models import Model, Version
from marketplace.catalog.services.listings import ExampleMessage, ListingText
from marketplace.vault.services import release_key
from tests.billing.support import insert_usages, split_of
from tests.database import as_owner, empty_tables
from tests.marketplace.catalog.factories import make_base, make_organization, make_user
from tests.marketplace.evals.factories import make_evaluation
from tests.marketplace.publishing.factories import give_record, give_sketch
from tests.marketplace.vault.factories import Booted, make_replica, make_sold, want

CARD = """# Ledgerline Transactions

Sorts a line of a bank statement into one of **ten** categories.

| message | answer |
|---|---|
| `POS 4821 Northgate Bakery` | `{"category":"groceries"}` |

- English only
- [More](https://example.com/card)
"""
FUNDS = 25 * 10**9


@dataclass
class World:
    """Rows by the names that the tests call them."""

    creator: User
    consumer: User
    stranger: User
    staff: User
    developer: User  # of the consumer's organization
    seller: Organization
    buyer: Organization
    model: Model
    published: Version
    verified: Version
    key: ApiKey
    key_text: str
    usage: list[Usage]
    booted: Booted  # the replica that computed the usage

    def client(self, user: User | None) -> Client:
        client = Client()
        if user is not None:
            client.force_login(user)
        return client


@pytest.fixture(scope="module")
def _kept_world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """One world for all tests of a file, committed: building it takes longer than reading most pages."""
    with django_db_blocker.unblock():
        world = build_world()
    yield world
    with django_db_blocker.unblock(), as_owner():
        empty_tables()


@pytest.fixture
def world(_kept_world: World, db: None) -> World:
    """The world of the file, with rows of the test's own; what the test writes is rolled back."""
    booted = _kept_world.booted
    keys = {id(one): one for one in (booted.keypair, booted.receipt_key)}  # which cannot be copied, nor change
    return deepcopy(_kept_world, keys)


def build_world() -> World:
    """Everything a page can show, in a few rows each."""
    creator, consumer, stranger = (make_user(f"{name}@example.com") for name in ("creator", "consumer", "stranger"))
    staff = make_user("staff@example.com", is_staff=True)
    seller, buyer = make_organization("ledgerline", creator), make_organization("northbank", consumer)
    make_organization("elsewhere", stranger)
    make_organization("operations", staff)
    developer = make_user("developer@example.com")
    Membership.objects.create(organization=buyer, user=developer, role=Membership.Role.DEVELOPER)
    model = _model(seller)
    published = make_sold(Version.State.PUBLISHED, model=model)
    version = published.version
    version.changelog, version.published_at = "First release.", timezone.now()
    version.save(update_fields=["changelog", "published_at"])
    verified = make_sold(Version.State.VERIFIED, model=model).version
    give_record(model)
    give_sketch(verified)
    Version.objects.create(
        model=model,
        number=3,
        state="refused",
        report={"refusal": {"field": "r", "rule": "rank", "message": "too large"}},
    )
    make_evaluation(version)
    booted = make_replica()
    want(booted.replica, published.digest)
    release_key(replica=booted.replica, digest=published.digest, purpose="serve")
    key, text = accounts.create_api_key(
        organization=buyer, name="billing service", scopes=["predict"], created_by=consumer
    )
    deposit(
        organization=buyer,
        amount_nano_usd=FUNDS,
        source=Account.Kind.STRIPE_CASH,
        lot_kind=Lot.Kind.PAID,
        kind=LedgerTransaction.Kind.TOP_UP,
        reference=str(uuid.uuid4()),
    )
    split = split_of(seller)
    rows = insert_usages([_usage(days, buyer, split, version, None if days % 5 else key, booted) for days in range(25)])
    people = creator, consumer, stranger, staff, developer
    return World(*people, seller, buyer, model, version, verified, key, text, rows, booted)


def add_payout(world: World) -> Payout:
    """Give the seller earnings, an account at Stripe, and a payout that has just started."""
    for kind, nano in ((Account.Kind.CREATOR_RESERVE, 7 * 10**9), (Account.Kind.CREATOR_PAYABLE, 41_234_567_890)):
        lines = [
            Line(get_account(kind=Account.Kind.PROMOTION), -nano),
            Line(get_account(kind=kind, organization=world.seller), nano),
        ]
        post_transaction(kind=LedgerTransaction.Kind.PROMOTION, reference=str(uuid.uuid4()), lines=lines)
    PayoutAccount.objects.create(
        organization=world.seller,
        stripe_account_id="acct_1",
        state=PayoutAccount.State.ACTIVE,
        bank_name="STRIPE TEST BANK",
        bank_last4="6789",
    )
    payout = start_payout(organization=world.seller)
    post_entries()
    return payout


def add_payments(world: World) -> Dispute:
    """Give the buyer cards, automatic top-ups, a payment by one of them, and a dispute of it."""
    names = {"organization": world.buyer, "exp_month": 12, "exp_year": 2034}
    card = SavedCard.objects.create(payment_method_id="pm_1", brand="visa", last4="4242", **names)
    SavedCard.objects.create(payment_method_id="pm_2", brand="american_express", last4="0005", **names)
    set_auto_top_up(
        organization=world.buyer,
        card_id=card.pk,
        threshold_cents=500,
        amount_cents=2_500,
        monthly_limit_cents=10_000,
    )
    top_up = TopUp.objects.create(
        organization=world.buyer, amount_cents=2_500, card=card, payment_intent_id="pi_1", next_check_at=None
    )
    credited = deposit(
        organization=world.buyer,
        amount_nano_usd=25 * 10**9,
        source=Account.Kind.STRIPE_CASH,
        lot_kind=Lot.Kind.PAID,
        kind=LedgerTransaction.Kind.TOP_UP,
        reference=str(top_up.pk),
    )
    TopUp.objects.filter(pk=top_up.pk).update(
        state=TopUp.State.CREDITED, ledger_transaction=credited, credited_at=timezone.now()
    )
    return Dispute.objects.create(
        id="dp_1",
        top_up=top_up,
        amount_cents=2_500,
        credit_cents=2_500,
        reason="fraudulent",
        status="needs_response",
        evidence_due_at=timezone.now() + timedelta(days=7),
    )


def _model(seller: Organization) -> Model:
    text = ListingText(
        title="Ledgerline Transactions",
        summary="Bank transaction text to one of ten spending categories, as JSON.",
        card_markdown=CARD,
        industry="finance",
        tags=["banking", "classification"],
        example_messages=[
            ExampleMessage("system", "Classify it."),
            ExampleMessage("user", "POS 4821 Northgate Bakery"),
        ],
    )
    model = catalog.create_model(organization=seller, slug="transactions", base_model=make_base(), text=text)
    catalog.set_price(
        model=model,
        input_micro_usd_per_mtok=200_000,
        cached_input_micro_usd_per_mtok=50_000,
        output_micro_usd_per_mtok=800_000,
    )
    return model


def _usage(
    days: int, buyer: Organization, split: int, version: Version, key: ApiKey | None, replica: Booted
) -> dict[str, Any]:
    cost = 30_000 + 7_000 * (days * 5 % 9)
    prediction_id = uuid.uuid4()
    return dict(
        prediction_id=prediction_id,
        created_at=timezone.now() - timedelta(days=days),
        organization_id=buyer.pk,
        api_key_id=key.pk if key else None,
        model_name=version.model.full_name,
        model_id=version.model.pk,
        version_id=version.pk,
        creator_organization_id=version.model.organization_id,
        replica_id=replica.replica.pk,
        prompt_tokens=96,
        cached_tokens=32,
        completion_tokens=9,
        input_micro_usd_per_mtok=200_000,
        cached_input_micro_usd_per_mtok=50_000,
        output_micro_usd_per_mtok=800_000,
        per_prediction_nano_usd=0,
        split_id=split,
        cost_nano_usd=cost,
        finish_reason="stop",
        receipt=sign_receipt(replica, prediction_id),
    )


def sign_receipt(replica: Booted, prediction_id: uuid.UUID) -> str:
    """A receipt as a replica signs it."""
    claims = {
        "iss": "replica",
        "jti": str(prediction_id),
        "attempt": 1,
        "replica_id": str(replica.replica.pk),
        "adapter": "cd" * 32,
        "base": "ab" * 32,
        "prompt_tokens": 96,
        "cached_tokens": 32,
        "completion_tokens": 9,
        "finish_reason": "stop",
        "ttft_ms": 84,
        "duration_ms": 412,
        "iat": 1_700_000_000,
    }
    return jwt.encode(claims, replica.receipt_key, algorithm="EdDSA", headers={"kid": str(replica.replica.pk)})
