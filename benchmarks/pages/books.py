"""Books with many models and predictions, written in bulk: rows that the product could have written, one by one.

One creator sells every model and one customer makes half of all predictions, so that their pages sum up the most rows
that any page can. Triggers are off, so balances are not those of the entries. The sums of the days before today are
written in bulk too (sums.py); today's predictions are added to them by the platform itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg
from django.utils import timezone

from benchmarks.pages.sums import SUMS
from billing.ledger import get_account
from billing.models import Account
from billing.rollups.services import roll_up
from billing.splits import simple_parts, split_id
from marketplace.accounts.models import Organization, User
from marketplace.accounts.services import create_api_key, create_organization
from marketplace.catalog.models import Model, Price, Version
from marketplace.catalog.services import register_base

CREATOR_BPS = 8_000
KEYS = 20
CORRECTED = 1_000  # one prediction in so many


@dataclass(frozen=True)
class Market:
    """The buyers and the seller."""

    creator: Organization
    seller: User
    customer: Organization
    buyer: User


def make_market(*, models: int, customers: int) -> Market:
    """Make one creator with so many published models, and customers; the first of them has 20 keys."""
    seller, buyer = (User.objects.create_user(f"{name}@example.com", "a long password") for name in ("seller", "buyer"))
    creator = create_organization(owner=seller, slug="creator", name="Creator", allow_reserved=True)
    customer = create_organization(owner=buyer, slug="customer-0", name="Customer 0", allow_reserved=True)
    Organization.objects.bulk_create(
        Organization(slug=f"customer-{number}", name=f"Customer {number}") for number in range(1, customers)
    )
    for number in range(KEYS):
        create_api_key(organization=customer, name=f"key {number}", scopes=["predict"], created_by=buyer)
    base = register_base(name="base", fingerprint="ab" * 32, config={}, context_length=4096)
    listings = [
        Model(
            organization=creator,
            slug=f"model-{number:05}",
            base_model=base,
            title=f"Classifier {number}",
            summary=f"Sorts documents of kind {number % 97} into {number % 13 + 2} drawers.",
            industry=("finance", "health", "law", "retail")[number % 4],
            tags=["classification", f"kind{number % 97}"],
        )
        for number in range(models)
    ]
    Model.objects.bulk_create(listings, batch_size=1_000)
    now = timezone.now()
    Version.objects.bulk_create(
        [Version(model=model, number=1, state=Version.State.PUBLISHED, published_at=now) for model in listings],
        batch_size=1_000,
    )
    Price.objects.bulk_create(
        [
            Price(
                model=model,
                input_micro_usd_per_mtok=100_000 + number,
                cached_input_micro_usd_per_mtok=50_000,
                output_micro_usd_per_mtok=400_000 + number,
            )
            for number, model in enumerate(listings)
        ],
        batch_size=1_000,
    )
    return Market(creator, seller, customer, buyer)


def fill(market: Market, administrators: Sequence[psycopg.Connection], *, rows: int, days: int) -> tuple[int, float]:
    """Write so many predictions over the last days, and their sums: days side by side, one on each connection.

    Returns how many of today's rows the platform added to the sums, and the seconds that took. Only administrators may
    turn triggers off.
    """
    values = {
        "rows": rows // days,
        "creator": market.creator.pk,
        "customer": market.customer.pk,
        "split": split_id(simple_parts(market.creator.pk, CREATOR_BPS)),
        "account": get_account(kind=Account.Kind.CREATOR_RESERVE, organization=market.creator).pk,
        "wallet": get_account(kind=Account.Kind.CUSTOMER_CREDIT, organization=market.customer).pk,
        "corrected": CORRECTED,
    }
    now = datetime.now(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    first = administrators[0]
    for ago in range(days):
        first.execute("SELECT billing_create_usage_partition(%s::date)", [today - timedelta(days=ago)])

    def write(number: int) -> None:
        administrator = administrators[number]
        execute = psycopg.ClientCursor(administrator).execute  # its parameters may stand in several statements at once
        execute(_PEOPLE, values)
        for ago in range(days - 1 - number, -1, -len(administrators)):
            length = timedelta(days=1) if ago else now - today
            times = {"day": today - timedelta(days=ago), "length": length}
            with administrator.transaction():
                execute("SET LOCAL session_replication_role = replica")
                for statement in (_DRAW, _USAGE, _LEDGER, _CORRECTIONS, *(() if ago else (_QUEUE,))):
                    execute(statement, values | times)

    with ThreadPoolExecutor(len(administrators)) as threads:
        list(threads.map(write, range(len(administrators))))
    with first.transaction():
        first.execute("SET LOCAL work_mem = '256MB'")
        for statement in SUMS:
            psycopg.ClientCursor(first).execute(statement, {"creator": market.creator.pk, "today": today})
    first.execute("VACUUM ANALYZE")
    start = time.perf_counter()
    counted = roll_up(rows_at_once=100_000)
    return counted, time.perf_counter() - start


# Half of the predictions are the first customer's, of all models, some asked far more often than others; every other
# customer has twenty models.
_PEOPLE = """
CREATE TEMPORARY TABLE buyer AS
    SELECT row_number() OVER (ORDER BY slug) AS number, id FROM accounts_organization WHERE id <> %(creator)s;
CREATE TEMPORARY TABLE listing AS
    SELECT row_number() OVER (ORDER BY slug) AS number, m.id, 'creator/' || m.slug AS name, v.id AS version_id,
        m.organization_id
    FROM catalog_model m JOIN catalog_version v ON v.model_id = m.id;
CREATE TEMPORARY TABLE key AS
    SELECT row_number() OVER (ORDER BY name) AS number, id FROM accounts_apikey WHERE organization_id = %(customer)s;
ANALYZE buyer; ANALYZE listing; ANALYZE key;
CREATE TEMPORARY TABLE drawn (id uuid, at timestamptz, buyer bigint, listing bigint, key bigint, tokens integer);
"""
_DRAW = """
TRUNCATE drawn;
INSERT INTO drawn SELECT gen_random_uuid(), %(day)s::timestamptz + random() * %(length)s::interval,
    CASE WHEN random() < 0.5 THEN (SELECT number FROM buyer WHERE id = %(customer)s)
        ELSE 1 + floor(random() * (SELECT count(*) FROM buyer)) END,
    1 + floor(power(random(), 2) * (SELECT count(*) FROM listing)), 1, 1 + floor(random() * 400)
FROM generate_series(1, %(rows)s);
UPDATE drawn SET listing = 1 + (buyer * 53 + listing %% 20) %% (SELECT count(*) FROM listing)
    WHERE buyer <> (SELECT number FROM buyer WHERE id = %(customer)s);
UPDATE drawn SET key = 1 + listing %% (SELECT count(*) FROM key);
ANALYZE drawn;
"""
_USAGE = """
INSERT INTO billing_usage (prediction_id, created_at, organization_id, api_key_id, model_name, model_id, version_id,
    creator_organization_id, prompt_tokens, cached_tokens, completion_tokens, input_micro_usd_per_mtok,
    cached_input_micro_usd_per_mtok, output_micro_usd_per_mtok, per_prediction_nano_usd, split_id, cost_nano_usd,
    finish_reason, receipt)
SELECT d.id, d.at, b.id, CASE WHEN b.id = (SELECT organization_id FROM accounts_apikey WHERE id = k.id) THEN k.id END,
    l.name, l.id, l.version_id, l.organization_id, d.tokens * 3, d.tokens, d.tokens, 100000, 50000, 400000, 0,
    %(split)s, d.tokens * 700, 'stop', repeat('r', 300)
FROM drawn d JOIN buyer b ON b.number = d.buyer JOIN listing l ON l.number = d.listing JOIN key k ON k.number = d.key;
"""
_LEDGER = """
WITH booked AS (
    INSERT INTO billing_ledgertransaction (kind, reference, created_at) SELECT 'prediction', id::text, at FROM drawn
    RETURNING id, reference
)
INSERT INTO billing_entry (transaction_id, account_id, amount)
    SELECT booked.id, %(account)s, d.tokens * 560 FROM booked JOIN drawn d ON d.id::text = booked.reference;
"""
_CORRECTIONS = """
INSERT INTO billing_hold (id, account_id, organization_id, api_key_id, amount_nano_usd, state, input_micro_usd_per_mtok,
    cached_input_micro_usd_per_mtok, output_micro_usd_per_mtok, per_prediction_nano_usd, split_id, model_name, model_id,
    version_id, creator_organization_id, request_hash, created_at, expires_at, closed_at, cost_nano_usd,
    allowance_used_nano_usd, max_prompt_tokens, max_tokens)
SELECT u.prediction_id, %(wallet)s, u.organization_id, u.api_key_id, u.cost_nano_usd, 'settled', 100000, 50000, 400000,
    0, u.split_id, u.model_name, u.model_id, u.version_id, u.creator_organization_id, '', u.created_at, u.created_at,
    u.created_at, u.cost_nano_usd, 0, 2000, 2000
FROM billing_usage u JOIN drawn d ON d.id = u.prediction_id AND d.at = u.created_at
WHERE random() * %(corrected)s < 1;
WITH part AS (
    SELECT h.id, t.id AS original, h.cost_nano_usd / 2 AS amount, h.closed_at
    FROM billing_hold h JOIN drawn d ON d.id = h.id
    JOIN billing_ledgertransaction t ON t.kind = 'prediction' AND t.reference = h.id::text
), booked AS (
    INSERT INTO billing_ledgertransaction (kind, reference, corrects_id, created_at)
    SELECT 'correction', id::text, original, closed_at FROM part RETURNING id, reference
), given AS (
    INSERT INTO billing_correction (id, prediction_id, amount_nano_usd, reason, transaction_id, created_at)
    SELECT gen_random_uuid(), part.id, part.amount, 'benchmark', booked.id, part.closed_at
    FROM part JOIN booked ON booked.reference = part.id::text RETURNING transaction_id, amount_nano_usd
)
INSERT INTO billing_entry (transaction_id, account_id, amount)
    SELECT transaction_id, %(account)s, -amount_nano_usd * 8 / 10 FROM given WHERE amount_nano_usd > 1;
"""
_QUEUE = """
INSERT INTO billing_rollupqueue (prediction_id, settled_at) SELECT id, at FROM drawn;
INSERT INTO billing_rollupqueue (prediction_id, settled_at, correction_id)
    SELECT d.id, d.at, c.id FROM billing_correction c JOIN drawn d ON d.id = c.prediction_id;
"""
