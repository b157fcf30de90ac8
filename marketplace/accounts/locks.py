"""Row locks of this app, and the one order in which the whole platform takes its locks.

A transaction takes locks only downwards in this list, and rows of one table by primary key, so that no two transactions
wait for each other. Every `select_for_update` stands in the `locks.py` of its app, and nowhere else (a test looks).

 1. bootstrap of the platform's keys     `vault.locks.lock_bootstrap`, an advisory lock
 2. user                                 `accounts.locks.lock_user`
 3. organization                         `accounts.locks.lock_organization`, `billing_open_run`
 4. API key                              `accounts.locks.lock_api_key`
 5. model                                `catalog.locks.lock_model`, `catalog.locks.lock_models`
 6. version                              `catalog.locks.lock_version`, `vault.locks.lock_version_of_package`
 7. set of rows                          `evals.locks.lock_set`
 8. pool, then enrolled replica          `vault.locks.lock_fleet_credential`, `vault.locks.lock_enrolled_replica`
 9. creator key                          `vault.locks.lock_creator_key`
10. top-up, its refund or dispute, its   `billing.locks.lock_top_up`, `billing.locks.lock_refund`,
    automatic rule, payout               `billing.locks.lock_dispute`, `billing.locks.lock_auto_top_up`,
                                         `billing.locks.lock_payout`
11. hold                                 `billing_keep_answers`, `billing_settle_holds`, `billing_release_holds`
12. ledger transaction to be corrected   `billing.locks.lock_ledger_transaction`
13. ledger accounts of customers         `billing_place_holds`, `billing_settle_holds`
14. allowances, then budget nodes from   the same functions, `billing.locks.lock_budget_branch`
    roots to leaves
15. ledger accounts, in the order of     `billing.ledger.post_transaction`, `billing.locks.lock_account`,
    the chart (`AccountKind.rank`)       `billing.locks.lock_accounts`, `billing.locks.lock_stripe_cash`,
                                         `billing_settle_holds`,
                                         `billing.payouts.books.lock_balances`
16. progress of the books' check         `billing.locks.lock_ledger_checkpoint`

Rows that carry authority are locked by `seals.locks.lock_sealed` where a statement is about to change them, which would
lock them itself: at their tables' places above.
A base line (`catalog.locks.lock_line`) is locked alone: under it checkpoints are only added.
A request for access (`access.locks.lock_request`) is locked alone: under it rows are only added.
Trees of receipts have a lock of their own, an advisory one (`receipts.locks.lock_trees`): under it no other is taken.
The sums of models in use have their mark (`watch.locks.lock_mark`), under which only the sums and
`watch.locks.lock_uncounted_thumbs` are taken.
Workers choose the calls of jobs under a lock of their own (`jobs.locks.lock_queue`): only these are written then.
The places of models have one as well (`standing.locks.lock_places`): under it only their own rows are written.
The switch of a feature (`accounts.locks.lock_feature_switch`) is locked alone; the audit log is only added to.
Days of the audit log are sealed under `accounts.locks.lock_audit_seals`, under which only seals are added.
Outbox rows are claimed with SKIP LOCKED (`billing.locks.claim_outbox_rows`), which never waits.
"""

from __future__ import annotations

from uuid import UUID

from django.db import connection

from marketplace.accounts.models import ApiKey, FeatureSwitch, Organization, User

SEALS_LOCK = 0x61756469  # any fixed number: the name of the advisory lock


def lock_user(user_id: UUID) -> User:
    """Lock the user: organizations that they come to own are counted one at a time."""
    return User.objects.select_for_update().get(pk=user_id)


def lock_organization(organization_id: UUID) -> Organization:
    """Lock the organization: keys, models and open uploads up to a limit are counted one at a time."""
    return Organization.objects.select_for_update().get(pk=organization_id)


def lock_api_key(key_id: UUID) -> ApiKey:
    """Lock the key while its successor is made, so that rotating it twice at once makes two successors in turn."""
    return ApiKey.objects.select_for_update().get(pk=key_id)


def lock_feature_switch(name: str) -> FeatureSwitch:
    """Lock the switch of a feature, made where there is none: of two who change it at once, both stand in the log."""
    row, _ = FeatureSwitch.objects.select_for_update().get_or_create(pk=name, defaults={"percent": 100})
    return row


def lock_audit_seals() -> None:
    """Let one transaction at a time seal days of the audit log; the advisory lock ends with the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [SEALS_LOCK])
