"""The rights of the application's database role: one rule for every table and function, and nothing without a rule.

`migrate` applies them after it changed the schema, and stops at a table or function that has none. The books can be
read, and written through functions that run with their owner's rights; of the ledger, rows may be added, which the
triggers check. No rule gives TRUNCATE, ownership or any change of the schema.
"""

from __future__ import annotations

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

READ = "SELECT"
APPEND = "SELECT, INSERT"
WRITE = "SELECT, INSERT, UPDATE, DELETE"

TABLES = {
    "access_accessrequest": "SELECT, INSERT, UPDATE",
    "access_licenceacceptance": APPEND,
    "access_terms": APPEND,
    "account_emailaddress": WRITE,
    "account_emailconfirmation": WRITE,
    "accounts_apikey": WRITE,
    "accounts_auditentry": APPEND,
    "accounts_auditseal": APPEND,
    "accounts_featureswitch": "SELECT, INSERT, UPDATE",
    "accounts_formername": WRITE,
    "accounts_membership": WRITE,
    "accounts_organization": WRITE,
    "accounts_rowseal": WRITE,
    "accounts_user": WRITE,
    "accounts_user_groups": WRITE,
    "accounts_user_user_permissions": WRITE,
    "alerts_alert": "SELECT, INSERT, DELETE",
    "alerts_delivery": WRITE,
    "alerts_event": "SELECT, INSERT, DELETE",
    "alerts_mute": WRITE,
    "alerts_seen": WRITE,
    "allauth_idp_oidc_client": APPEND,
    "allauth_idp_oidc_token": WRITE,
    "auth_group": READ,
    "auth_group_permissions": READ,
    "auth_permission": READ,
    "billing_account": APPEND,
    "billing_accountkind": READ,
    "billing_autotopup": "SELECT, INSERT, UPDATE",
    "billing_allowance": READ,
    "billing_budgetalert": "SELECT, INSERT, UPDATE (announced_at, node_name)",
    "billing_budgetnode": "SELECT, INSERT, DELETE, UPDATE (parent_id, name, path, per_request_limit_nano_usd, "
    "daily_limit_nano_usd, monthly_limit_nano_usd, total_limit_nano_usd, end_user_per_request_limit_nano_usd, "
    "end_user_daily_limit_nano_usd, end_user_monthly_limit_nano_usd, end_user_total_limit_nano_usd)",
    "billing_carduse": "SELECT, INSERT, UPDATE (first_used_at), DELETE",
    "billing_correction": READ,
    "billing_billingprofile": "SELECT, INSERT, UPDATE",
    "billing_dispute": "SELECT, INSERT, UPDATE",
    "billing_droppedusage": READ,
    "billing_earningsday": READ,
    "billing_entry": APPEND,
    "billing_gateway": READ,
    "billing_hold": READ,
    "billing_incident": "SELECT, INSERT, UPDATE (detail, resolved_at)",
    "billing_instant": READ,
    "billing_keptanswer": "SELECT, DELETE",
    "billing_ledgercheckpoint": "SELECT, INSERT, UPDATE",
    "billing_ledgertransaction": APPEND,
    "billing_lot": "SELECT, INSERT",
    "billing_outbox": "SELECT, INSERT, UPDATE (announced_at), DELETE",
    "billing_payout": "SELECT, INSERT, UPDATE",
    "billing_payoutaccount": "SELECT, INSERT, UPDATE",
    "billing_paper": READ,
    "billing_paperfile": APPEND,
    "billing_papernumber": READ,
    "billing_paymentdetail": APPEND,
    "billing_paidweek": READ,
    "billing_period": READ,
    "billing_periodbalance": READ,
    "billing_periodmovement": READ,
    "billing_posting": READ,
    "billing_postingmark": READ,
    "billing_savedcard": "SELECT, INSERT, UPDATE",
    "billing_run": "SELECT, UPDATE (closed_at, metadata), DELETE",
    "billing_rollupmark": READ,
    "billing_rollupqueue": READ,
    "billing_spancustomer": READ,
    "billing_spantotal": READ,
    "billing_split": READ,
    "billing_splitpart": READ,
    "billing_stripecustomer": APPEND,
    "billing_stripeevent": "SELECT, INSERT, UPDATE",
    "billing_stripemovement": "SELECT, INSERT, UPDATE (matched_at, ledger_transaction_id)",
    "billing_topup": "SELECT, INSERT, UPDATE",
    "billing_topuprefund": "SELECT, INSERT, UPDATE",
    "billing_usage": READ,
    "billing_webhook": WRITE,
    "billing_usageday": READ,
    "catalog_baseline": WRITE,  # locked, never changed; goes with its last checkpoint
    "catalog_basemodel": WRITE,
    "catalog_clearance": WRITE,
    "catalog_evaluation": APPEND,
    "catalog_logo": "SELECT, INSERT, DELETE",
    "catalog_model": WRITE,
    "catalog_price": APPEND,
    "catalog_rollout": WRITE,
    "catalog_source": APPEND,
    "catalog_passage": "SELECT, INSERT, DELETE",
    "catalog_spelling": "SELECT, INSERT, DELETE",
    "catalog_searchtext": "SELECT, DELETE, UPDATE (passages_of)",  # triggers write the rest
    "catalog_standing": "SELECT, UPDATE, DELETE",  # triggers add and delete
    "catalog_version": WRITE,
    "django_content_type": READ,
    "evals_evalcall": APPEND,
    "evals_evalrun": "SELECT, INSERT, UPDATE",
    "evals_evalset": "SELECT, INSERT, UPDATE",
    "evals_modelguard": WRITE,
    "django_migrations": READ,
    "django_session": WRITE,
    "operations_incident": "SELECT, INSERT, UPDATE (resolved_at)",
    "operations_probe": "SELECT, INSERT, DELETE",
    "operations_probeday": "SELECT, INSERT, UPDATE (good, bad)",
    "operations_update": APPEND,
    "planning_plan": "SELECT, INSERT, UPDATE",
    "planning_planfile": APPEND,
    "privacy_erasure": APPEND,
    "promises_month": APPEND,
    "promises_promise": APPEND,
    "promises_refund": "SELECT, INSERT, UPDATE (paid_nano_usd, paid_at)",
    "prompts_prompt": "SELECT, INSERT, DELETE",
    "publishing_act": APPEND,
    "publishing_report": "SELECT, INSERT, UPDATE",
    "publishing_review": "SELECT, INSERT, UPDATE",
    "publishing_sketch": "SELECT, INSERT, DELETE",
    "publishing_strike": "SELECT, INSERT, UPDATE (lifted_at)",
    "protection_customer": WRITE,
    "protection_protection": WRITE,
    "responses_storedresponse": "SELECT, INSERT, DELETE",
    "receipts_day": "SELECT, INSERT, UPDATE",
    "receipts_head": APPEND,
    "receipts_segment": "SELECT, INSERT, UPDATE",
    "jobs_asyncprediction": WRITE,
    "jobs_batch": WRITE,
    "jobs_batchline": WRITE,
    "jobs_file": WRITE,
    "jobs_filechunk": WRITE,
    "mfa_authenticator": WRITE,
    "teams_invite": WRITE,
    "teams_invitemail": "SELECT, INSERT, DELETE",
    "teams_logo": WRITE,
    "teams_transfer": WRITE,
    "trials_trial": WRITE,
    "trials_trialrow": WRITE,
    "usersessions_usersession": WRITE,
    "vault_answerkey": "SELECT, INSERT, DELETE",
    "vault_creatorkey": WRITE,
    "vault_datakey": WRITE,
    "vault_enrolledreplica": WRITE,
    "vault_fleetcredential": WRITE,
    "vault_lease": WRITE,
    "vault_platformkey": WRITE,
    "vault_release": APPEND,
    "vault_releaseorder": WRITE,
    "vault_replica": WRITE,
    "vault_replicachallenge": WRITE,
    "vault_signingkey": WRITE,
    "watch_alarm": WRITE,
    "watch_baseline": "SELECT, INSERT, UPDATE",
    "watch_block": APPEND,
    "watch_demand": WRITE,
    "watch_hour": WRITE,
    "watch_hourcaller": WRITE,
    "watch_mark": "SELECT, INSERT, UPDATE",
    "watch_payer": APPEND,
    "watch_settled": "SELECT, DELETE",  # a trigger writes it
    "watch_threshold": WRITE,
    "watch_thumb": "SELECT, INSERT, UPDATE",
    "watch_thumbtotal": "SELECT, INSERT, UPDATE",
    "watch_window": APPEND,
}

# Functions that the application calls. They run with their owner's rights, under a fixed search path.
CALLED = {
    "billing_account_id",
    "billing_close_month",
    "billing_correct_prediction",
    "billing_create_usage_partition",
    "billing_draw_lots",
    "billing_drop_usage",
    "billing_expire_hold",
    "billing_expire_lots",
    "billing_gateway_beat",
    "billing_gross_nano_usd",
    "billing_issue_paper",
    "billing_key_line",
    "billing_lock_account",
    "billing_lock_transaction",
    "billing_kin",
    "billing_next_attempt",
    "billing_open_run",
    "billing_place_holds",
    "billing_post_entries",
    "billing_record_delivery",
    "billing_record_kept_delivery",
    "billing_release_hold",
    "billing_settle_holds",
    "billing_settle_kept",
    "billing_share_left",
    "billing_shares",
    "billing_shares_of",
    "billing_roll_up",
    "billing_split_id",
    "catalog_list_models",
}
# Functions that functions call. (Functions of triggers need no rule: nobody can call them.)
INTERNAL = {
    "billing_affordable_tokens",
    "billing_assert_charges",
    "billing_assert_correction",
    "billing_book_charges",
    "billing_budget_path",
    "billing_call_path",
    "billing_charge_lines",
    "billing_close_counters",
    "billing_earlier_hold",
    "billing_free_rest",
    "billing_give_back",
    "billing_keep_answers",
    "billing_lock_closing",
    "billing_lock_nodes",
    "billing_lock_wallets",
    "billing_move_allowance",
    "billing_open_month",
    "billing_open_payees",
    "billing_protect_partition",
    "billing_release_holds",
    "billing_room_of",
    "billing_run_refusal",
    "billing_settle_locked",
    "billing_settle_outcomes",
    "billing_spend_in_budgets",
    "billing_take_back",
    "billing_tied",
    "billing_usage_papers_missing",
    "billing_usage_proven",
    "billing_usage_uncounted",
    "catalog_write_search_text",
}
SEARCH_PATH = "public, pg_temp"

_TABLES = """
SELECT relname FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT relispartition
"""  # A partition is reached through its table.
_FUNCTIONS = """
SELECT proname, oid::regprocedure::text, prorettype = 'trigger'::regtype,
    prosecdef AND proconfig IS NOT DISTINCT FROM ARRAY['search_path=' || %s]
FROM pg_proc WHERE pronamespace = 'public'::regnamespace
"""


class RuleMissing(Exception):
    """A table or function of the schema has no rule in marketplace/config/grants.py; the message names it."""


def apply_grants(connection: BaseDatabaseWrapper, *, application: str) -> None:
    """Give the role `application` what the rules say and nothing else, as the owner of the schema.

    Raises RuleMissing, and changes nothing then.
    """
    role = connection.ops.quote_name(application)
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        for kind in ("TABLES", "SEQUENCES", "FUNCTIONS"):
            cursor.execute(f"REVOKE ALL ON ALL {kind} IN SCHEMA public FROM PUBLIC, {role}")
        missing = _grant_tables(cursor, role) + _grant_functions(cursor, role)
        if missing:
            raise RuleMissing(f"no rule in marketplace/config/grants.py for: {', '.join(missing)}")


def _grant_tables(cursor: CursorWrapper, role: str) -> list[str]:
    """Grant on every table; return the names of those without a rule."""
    cursor.execute(_TABLES)
    tables = {name for (name,) in cursor.fetchall()}
    for table in sorted(tables & set(TABLES)):
        cursor.execute(f"GRANT {TABLES[table]} ON {table} TO {role}")
    return sorted(tables - set(TABLES))


def _grant_functions(cursor: CursorWrapper, role: str) -> list[str]:
    """Let every function run with its owner's rights, and the application call some; return those without a rule."""
    cursor.execute(_FUNCTIONS, [SEARCH_PATH])
    missing = []
    for name, signature, is_trigger, is_secure in cursor.fetchall():
        if not is_secure:
            cursor.execute(f"ALTER FUNCTION {signature} SECURITY DEFINER SET search_path = {SEARCH_PATH}")
        if name in CALLED:
            cursor.execute(f"GRANT EXECUTE ON FUNCTION {signature} TO {role}")
        elif name not in INTERNAL and not is_trigger:
            missing.append(signature)
    return sorted(missing)
