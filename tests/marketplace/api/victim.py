"""An organization with one of everything, for tests that enumerate the operations of the control API."""

from __future__ import annotations

from dataclasses import dataclass

from billing.budgets import tree
from billing.budgets.limits import Limits
from billing.ledger import Line, get_account, post_transaction
from billing.models import (
    Account,
    BudgetNode,
    Hold,
    LedgerTransaction,
    Paper,
    Payout,
    Run,
    SavedCard,
    TopUp,
    Webhook,
)
from billing.papers.document import Document
from billing.papers.issue import issue
from billing.services import credit_promotion
from marketplace.access.models import AccessRequest
from marketplace.accounts.models import ApiKey, Organization, User
from marketplace.alerts.models import Delivery
from marketplace.alerts.webhooks import create_webhook, send_test
from marketplace.catalog.models import Model, Version
from marketplace.evals.models import EvalRun
from marketplace.prompts.models import Prompt
from marketplace.prompts.services import Texts, keep_prompt
from marketplace.publishing.models import Review
from marketplace.teams.invites import invite
from marketplace.teams.models import Invite
from marketplace.trials.models import Trial
from marketplace.vault import services as vault_services
from marketplace.vault.models import SigningKey
from tests.billing.support import hold_request, open_run, place, settle
from tests.marketplace.catalog.factories import make_key, make_model, make_organization, make_version
from tests.marketplace.evals.factories import make_evaluation


@dataclass
class Victim:
    """An organization with one of everything."""

    organization: Organization
    model: Model
    published: Version
    uploading: Version
    key: ApiKey
    top_up: TopUp
    card: SavedCard
    paper: Paper
    budget: BudgetNode
    webhook: Webhook
    delivery: Delivery
    payout: Payout
    prediction: Hold
    review: Review
    trial: Trial
    prompt: Prompt
    eval_run: EvalRun
    member: User
    invite: Invite
    access_request: AccessRequest
    run: Run


def make_victim() -> Victim:
    vault_services.bootstrap_platform_keys()
    organization = make_organization("victim")
    model = make_model(organization)
    published = make_version(model)
    signing_key = SigningKey.objects.create(organization=organization, public_key=bytes(32))
    uploading = Version.objects.create(model=model, number=9, package_size=100, signing_key=signing_key)
    key, _ = make_key(organization)
    top_up = TopUp.objects.create(organization=organization, amount_cents=500)
    card = SavedCard.objects.create(
        organization=organization, payment_method_id="pm_victim", brand="visa", last4="4242", exp_month=1, exp_year=2034
    )
    receipt = Document("Receipt", (), (), ())
    paper = issue(Paper.Kind.RECEIPT, organization=organization, subject="x", document=receipt, total_nano_usd=0)
    budget = tree.create_team(organization=organization, name="team", parent_id=None, limits=Limits())
    webhook = create_webhook(organization=organization, url="https://victim.example/hook")
    credit_promotion(organization=organization, amount_nano_usd=5_000, reference="victim")
    prediction = place(hold_request(organization, organization)).prediction_id
    settle(prediction)
    hold = Hold.objects.get(pk=prediction)
    return Victim(
        organization,
        model,
        published,
        uploading,
        key,
        top_up,
        card,
        paper,
        budget,
        webhook,
        send_test(webhook=webhook),
        make_payout(organization),
        hold,
        Review.objects.get(model=model),
        Trial.objects.create(organization=organization, seed=bytes(32), purse=key, budget_nano_usd=1, rows_count=1),
        keep_prompt(
            organization=organization, by=None, name="one", texts=Texts("Mine."), models=["victim/sorts@1"]
        ).row,
        EvalRun.objects.get(pk=make_evaluation(published, rows=1, correct=1, base_correct=0).run_id),
        organization.memberships.get().user,
        invite(
            organization=organization,
            by=organization.memberships.get().user,
            email="guest@example.com",
            role="viewer",
        ),
        AccessRequest.objects.create(model=model, organization=make_organization("asking"), reason="because"),
        open_run(key),
    )


def make_payout(organization: Organization) -> Payout:
    """A payout that has just started, of earnings from nowhere."""
    started = post_transaction(
        kind=LedgerTransaction.Kind.PAYOUT,
        reference="victim",
        lines=[
            Line(get_account(kind=Account.Kind.PAYOUT_IN_TRANSIT, organization=organization), 10**7),
            Line(get_account(kind=Account.Kind.CLEARING), -(10**7)),
        ],
    )
    return Payout.objects.create(
        organization=organization, stripe_account_id="acct_victim", amount_cents=1, ledger_transaction=started
    )


def fill(text: str, victim: Victim) -> str:
    return text.format(
        org=victim.organization.slug,
        slug=victim.model.slug,
        key=victim.key.id,
        published=victim.published.id,
        uploading=victim.uploading.id,
        top_up=victim.top_up.id,
        card=victim.card.id,
        paper=victim.paper.id,
        budget=victim.budget.id,
        webhook=victim.webhook.id,
        delivery=victim.delivery.id,
        payout=victim.payout.id,
        trial=victim.trial.id,
        prompt=victim.prompt.id,
        prediction=victim.prediction.id,
        review=victim.review.id,
        signing_key=victim.uploading.signing_key_id,
        eval_set=victim.eval_run.eval_set_id,
        eval_run=victim.eval_run.id,
        member=victim.member.id,
        invite=victim.invite.id,
        access_request=victim.access_request.id,
        run=f"run_{victim.run.node_id.hex}",
    )
