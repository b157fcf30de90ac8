"""Each table with rows of a person or an organization: what a copy of the data has of it, or why it has nothing.

A table without a rule fails a test, so nothing new is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db.models import Model, QuerySet

from billing.models import (
    Account,
    Allowance,
    AutoTopUp,
    BillingProfile,
    BudgetAlert,
    BudgetNode,
    CardUse,
    Dispute,
    Paper,
    Payout,
    PayoutAccount,
    Posting,
    Run,
    SavedCard,
    StripeCustomer,
    TopUp,
    TopUpRefund,
    Usage,
    Webhook,
)
from marketplace.access.models import AccessRequest, LicenceAcceptance
from marketplace.accounts.models import ApiKey, AuditEntry, AuditSeal, FormerName, Membership, Organization
from marketplace.alerts.models import Alert, Event, Mute
from marketplace.catalog.models import Clearance, Price, Rollout, Source, Version
from marketplace.catalog.models import Model as Listing
from marketplace.evals.models import EvalRun, EvalSet
from marketplace.jobs.models import AsyncPrediction, Batch, BatchLine, File, FileChunk
from marketplace.jobs.sealing import read_call_row, read_chunk_row
from marketplace.promises.models import Month, Promise, Refund
from marketplace.prompts.models import Prompt
from marketplace.prompts.services import in_the_clear
from marketplace.protection.models import Customer, Protection
from marketplace.publishing.models import Report, Review, Strike
from marketplace.responses.models import StoredResponse
from marketplace.responses.sealing import read_sealed as read_response
from marketplace.teams.models import Invite, Transfer
from marketplace.trials.models import Trial, TrialRow
from marketplace.trials.sealing import read_sealed
from marketplace.vault.models import Release, SigningKey
from marketplace.watch.models import Threshold, Thumb


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of an organization in one table, and the columns that it gets of them."""

    name: str
    rows: Callable[[Organization], QuerySet[Any]]
    columns: tuple[str, ...]
    opened: Callable[[Organization, dict[str, Any]], dict[str, Any]] | None = None  # what is encrypted, in the clear


def _of(
    model: type[Model],
    columns: str,
    *,
    by: str = "organization",
    opened: Callable[[Organization, dict[str, Any]], dict[str, Any]] | None = None,
) -> Table:
    return Table(
        model._meta.db_table, lambda one: model._default_manager.filter(**{by: one.pk}), tuple(columns.split()), opened
    )


def _hex_digest(_: Organization, row: dict[str, Any]) -> dict[str, Any]:
    return row | {"digest": bytes(row["digest"]).hex()}


EXPORTED = (
    _of(
        Organization,
        "id slug name created_at referred_by_id referral_ends_at requires_second_factor suspended_at suspension_reason",
        by="pk",
    ),
    _of(Membership, "user__email role created_at"),
    _of(
        ApiKey,
        "id name prefix scopes created_by__email created_at expires_at revoked_at last_used_at first_key_id guards "
        "allowed_networks allowed_models",
    ),
    _of(AuditEntry, "id user_id api_key_id as_staff act subject data created_at"),
    _of(AuditSeal, "day entries digest", opened=_hex_digest),
    _of(FormerName, "slug given_up_at kept_until"),
    _of(Invite, "email role invited_by__email created_at sent_at expires_at accepted_at revoked_at"),
    _of(Transfer, "offered_by__email offered_to__email created_at expires_at"),
    _of(BillingProfile, "legal_name email line1 line2 postal_code city region country tax_id updated_at"),
    _of(
        Listing,
        "id slug kind title summary card_markdown industry tags visibility example_messages guards licence "
        "licence_text licence_required gated logo default_version_id created_at",
    ),
    _of(
        Version,
        "id model_id number state changelog package_digest package_size report contract published_at "
        "deprecated_at ends_at replacement_id created_at",
        by="model__organization",
    ),
    _of(
        Rollout,
        "id model_id version_id baseline_id percent started_at ended_at outcome",
        by="model__organization",
    ),
    _of(Source, "model_id upstream_id royalty_bps", by="model__organization"),
    _of(
        Price,
        "model_id version_id input_micro_usd_per_mtok cached_input_micro_usd_per_mtok output_micro_usd_per_mtok "
        "per_prediction_nano_usd effective_at",
        by="model__organization",
    ),
    _of(Promise, "id model_id kind bound starts_on created_at", by="model__organization"),
    _of(Month, "id model_id kind month promise_id calls missed value judged_at", by="model__organization"),
    _of(
        Refund,
        "id month__model_id month__kind month__month calls missed spent_nano_usd refund_bps amount_nano_usd "
        "paid_nano_usd paid_at",
    ),
    _of(
        Trial,
        "id first second scoring fields budget_nano_usd rows_count state ended_by created_at ended_at rows_deleted_at",
    ),
    _of(
        TrialRow,
        "id trial_id number sealed answers answered_at winner refused a_cost_nano_usd b_cost_nano_usd a_prediction_id "
        "b_prediction_id",
        by="trial__organization",
        opened=read_sealed,
    ),
    _of(File, "id purpose name endpoint bytes lines created_at expires_at"),
    _of(FileChunk, "id file_id number sealed", by="file__organization", opened=read_chunk_row),
    _of(
        Batch,
        "id api_key_id endpoint input_file_id output_file_id error_file_id metadata state reason total completed "
        "failed cost_nano_usd created_at expires_at ended_at",
    ),
    _of(
        BatchLine,
        "id batch_id number state request outcome prediction_id cost_nano_usd",
        by="batch__organization",
        opened=read_call_row,
    ),
    _of(
        AsyncPrediction,
        "id api_key_id endpoint state request outcome status_code error_code prediction_id cost_nano_usd created_at "
        "ended_at expires_at",
        opened=read_call_row,
    ),
    _of(
        Review,
        "id model_id version_id kind state reasons findings change appeal appealed_at decision opened_at decided_at",
        by="model__organization",
    ),
    _of(Strike, "review_id created_at lifted_at"),
    _of(Report, "model_id reason text created_at"),
    _of(Protection, "model_id logprobs_open calls_per_day on_copying updated_at", by="model__organization"),
    _of(
        Customer,
        "model_id first_seen_at trusted_at granted_calls_per_day noticed_at noticed_distinct noticed_calls "
        "evenness_permille measure asked_at asked_calls_per_day",
    ),
    _of(LicenceAcceptance, "model_id terms__licence terms__text accepted_by accepted_at"),
    _of(AccessRequest, "id model_id state reason answer asked_at answered_at"),
    _of(EvalSet, "id model_id number scorer rows state refusal package_digest package_size created_at"),
    _of(
        EvalRun,
        "id eval_set_id version_id state reason budget_nano_usd spent_nano_usd created_at ended_at",
        by="eval_set__organization",
    ),
    _of(
        Clearance,
        "id version_id checkpoint__name state reason leave leave_at rows correct reference_correct same_answers "
        "measured_at",
        by="version__model__organization",
    ),
    _of(Prompt, "id name sealed model_names created_at", opened=in_the_clear),
    _of(SigningKey, "id created_at revoked_at"),
    _of(Release, "sequence version_id digest replica_id purpose released_at_us", by="creator"),
    _of(BudgetNode, "id parent_id kind name api_key_id end_user spent_total_nano_usd created_at"),
    _of(Run, "node_id node__name key_line metadata max_calls calls deadline closed_at created_at"),
    _of(
        StoredResponse,
        "id previous_id sealed created_at expires_at",
        by="organization_id",
        opened=read_response,
    ),
    _of(BudgetAlert, "node_kind node_name period period_start percent limit_nano_usd spent_nano_usd created_at"),
    _of(Webhook, "url events created_at disabled_at"),
    _of(Event, "kind data created_at"),
    _of(Alert, "kind subject text data created_at"),
    _of(Mute, "kind created_at"),
    _of(Allowance, "model_id kind month used_nano_usd", by="organization_id"),
    _of(Account, "kind currency posted held created_at"),
    _of(
        Posting,
        "sequence account__kind transaction__kind transaction__reference transaction__memo amount balance period",
        by="account__organization",
    ),
    _of(StripeCustomer, "customer_id created_at"),
    _of(SavedCard, "id brand last4 exp_month exp_year fingerprint created_at removed_at"),
    _of(CardUse, "fingerprint first_used_at"),
    _of(AutoTopUp, "card_id threshold_cents amount_cents monthly_limit_cents state"),
    _of(TopUp, "id amount_cents tax_cents card_fingerprint state created_at credited_at"),
    _of(
        TopUpRefund,
        "id top_up_id amount_cents tax_cents state failure created_at sent_at failed_at",
        by="top_up__organization",
    ),
    _of(
        Dispute,
        "id top_up_id amount_cents credit_cents tax_cents reason state frozen_nano_usd opened_at closed_at",
        by="top_up__organization",
    ),
    _of(Paper, "kind series number subject period total_nano_usd tax_nano_usd issued_at"),
    _of(PayoutAccount, "state schedule minimum_cents bank_name bank_last4 created_at"),
    _of(Payout, "id amount_cents state bank_last4 created_at transferred_at paid_at returned_at"),
    _of(Thumb, "prediction_id version_id is_up created_at", by="organization_id"),
    _of(Threshold, "model_id metric value", by="model__organization"),
    _of(
        Usage,
        "prediction_id created_at api_key_id model_name model_id version_id prompt_tokens cached_tokens "
        "completion_tokens cost_nano_usd finish_reason receipt",
        by="organization_id",
    ),
)

# Tables with such rows that no copy has, and why.
LEFT_OUT = {
    "account_emailaddress": "a person's: in the copy of the person",
    "accounts_user": "a person's: in the copy of the person",
    "allauth_idp_oidc_token": "tokens of logins of the command line, which last two minutes",
    "alerts_seen": "how far each member has read the alerts, which a copy has",
    "catalog_logo": "pictures, which the page of each model shows; the listing in a copy names the one in use",
    "billing_keptanswer": "answers of the last day, kept for retries, which whoever asked for them has",
    "billing_hold": "the worst case of predictions whose outcome is in usage",
    "billing_earningsday": "sums of usage and postings, which a copy has",
    "billing_paidweek": "sums of postings, which a copy has",
    "billing_spancustomer": "sums of usage",
    "billing_spantotal": "sums of usage",
    "billing_usageday": "sums of usage, which a copy has",
    "billing_splitpart": "shares of a split, by id; what was earned with them is in postings",
    "mfa_authenticator": "a person's second factor: a secret, which an erasure deletes",
    "publishing_act": "the audit of reviews, whose outcomes a copy has",
    "publishing_sketch": "numbers by which a copy of weights is known: whoever has them could make one that is not",
    "teams_invitemail": "when the invites of the last day were mailed, which a copy has of each invite",
    "teams_logo": "the picture that everybody may fetch",
    "usersessions_usersession": "a person's sessions: in the copy of the person, and an erasure deletes them",
    "vault_answerkey": "a wrapped key, useless outside the vault",
    "watch_hourcaller": "counts of usage, of the last hours",
    "watch_payer": "who has paid for which version, which usage says",
    "vault_creatorkey": "a wrapped key, useless outside the vault",
}
