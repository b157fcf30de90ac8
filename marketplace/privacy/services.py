"""Erasure: a person or an organization becomes a pseudonym, and the books stay whole.

Entries, usage, papers and receipts name organizations by id, and are kept for as long as the law asks; what ties the id
to somebody is erased.
"""

from __future__ import annotations

from functools import partial
from uuid import UUID

from allauth.account.models import EmailAddress
from allauth.idp.oidc.models import Token
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from billing.models import (
    Account,
    BillingProfile,
    BudgetAlert,
    BudgetNode,
    CardUse,
    Dispute,
    Hold,
    KeptAnswer,
    Payout,
    PayoutAccount,
    Run,
    SavedCard,
    TopUp,
    TopUpRefund,
    Webhook,
)
from marketplace.access.models import AccessRequest
from marketplace.accounts import audit
from marketplace.accounts.locks import lock_organization, lock_user
from marketplace.accounts.models import ApiKey, Membership, Organization, User
from marketplace.accounts.names import PLATFORM_SLUG
from marketplace.alerts.models import Alert, Event, Seen
from marketplace.catalog.models import Logo as ListingLogo
from marketplace.catalog.models import Model, Version
from marketplace.catalog.search import spelling
from marketplace.jobs.erasing import erase_jobs
from marketplace.privacy.errors import NotErasable
from marketplace.privacy.models import Erasure
from marketplace.publishing.models import Report, Review, Sketch
from marketplace.responses.models import StoredResponse
from marketplace.teams.models import Invite, Logo, Transfer
from marketplace.teams.organizations import keep_names
from marketplace.trials.models import Trial
from marketplace.trials.services import delete_rows
from marketplace.vault.models import AnswerKey, DataKey, SigningKey
from marketplace.vault.tasks import push_forgetting

ERASED = "erased"
_OFFERED = (Version.State.PUBLISHED, Version.State.IN_REVIEW)


@transaction.atomic
def erase_user(*, user: User, by: UUID | None) -> Erasure:
    """Take a person's address, password, memberships and rights away; the row stays, as a pseudonym.

    `by` is the id of the user who asked, None for an operator. Raises NotErasable while they alone own an organization.
    """
    row = lock_user(user.pk)
    owned = Organization.objects.filter(memberships__user=row, memberships__role=Membership.Role.OWNER)
    alone = [
        one.slug for one in owned if not one.memberships.filter(role=Membership.Role.OWNER).exclude(user=row).exists()
    ]
    if alone:
        raise NotErasable(f"you alone own {', '.join(sorted(alone))}: delete that first")
    for one in Organization.objects.filter(memberships__user=row):
        audit.record(organization=one, act="member.erased", subject=str(row.pk))
    Invite.objects.filter(email__iexact=row.email).delete()
    Transfer.objects.filter(Q(offered_by=row) | Q(offered_to=row)).delete()
    EmailAddress.objects.filter(user=row).delete()
    Authenticator.objects.filter(user=row).delete()
    UserSession.objects.filter(user=row).delete()
    Token.objects.filter(user=row).delete()
    Membership.objects.filter(user=row).delete()
    Seen.objects.filter(user=row).delete()
    row.email = f"{ERASED}-{row.pk.hex}@{ERASED}.invalid"
    row.set_unusable_password()  # which also ends every session
    row.is_active = row.is_staff = row.is_superuser = False
    row.last_login = None
    row.save()
    return _note(Erasure.Subject.USER, row.pk, by)


@transaction.atomic
def erase_organization(*, organization: Organization, by: UUID | None, give_up: bool = False) -> Erasure:
    """Take an organization's names, members, keys, listings' texts and data keys away; its accounts stay as they are.

    With `give_up`, a balance in its favour may be left: it stays in the books under the pseudonym. Raises NotErasable
    while something is open: a prediction, a payment, a payout, a debt, a version on sale.
    """
    row = lock_organization(organization.pk)
    left = _require_ended(row, give_up=give_up)
    _erase_selling(row)
    ApiKey.objects.filter(organization=row, revoked_at=None).update(revoked_at=timezone.now())
    ApiKey.objects.filter(organization=row).update(name=ERASED, allowed_networks=[], allowed_models=[])
    BudgetNode.objects.filter(organization=row, end_user__isnull=False).delete()
    BudgetNode.objects.filter(organization=row).update(name=ERASED)
    BudgetAlert.objects.filter(organization=row).update(node_name=ERASED)
    Alert.objects.filter(organization=row).delete()  # they name budgets and models
    Webhook.objects.filter(organization=row).delete()
    Event.objects.filter(organization=row).delete()
    for trial in Trial.objects.filter(organization=row).select_related("purse"):
        delete_rows(trial=trial)
    erase_jobs(row)
    Report.objects.filter(organization=row).update(text="")
    AccessRequest.objects.filter(organization=row).update(reason=ERASED, answer="")
    AnswerKey.objects.filter(organization=row).delete()  # without it, copies of kept answers in backups stay closed
    KeptAnswer.objects.filter(organization_id=row.pk).delete()
    StoredResponse.objects.filter(organization_id=row.pk).delete()
    Run.objects.filter(organization=row).update(metadata={})
    BillingProfile.objects.filter(organization=row).update(
        legal_name=ERASED, email="", line1=ERASED, line2="", postal_code="", city=ERASED, region="", tax_id=""
    )
    PayoutAccount.objects.filter(organization=row).update(bank_name="", bank_last4="", requirements=[])
    # Its payments have no card any more, so they count for nobody in the ranking of models.
    TopUp.objects.filter(organization=row).update(checkout_url="", card_fingerprint="")
    SavedCard.objects.filter(organization=row).update(fingerprint="")
    CardUse.objects.filter(organization=row).delete()
    audit.record(organization=row, act="organization.deleted")
    Membership.objects.filter(organization=row).delete()
    for table in (Invite, Transfer, Logo):
        table.objects.filter(organization=row).delete()
    keep_names(row)
    row.slug, row.name, row.logo = f"{ERASED}-{row.pk.hex}", "Erased organization", ""
    row.save(update_fields=["slug", "name", "logo"])
    spelling.reconcile()  # no search knows the names any more
    transaction.on_commit(partial(push_forgetting.delay, str(row.pk)))
    return _note(Erasure.Subject.ORGANIZATION, row.pk, by, left)


def _require_ended(row: Organization, *, give_up: bool) -> int:
    """Return the balance that is left; raises NotErasable."""
    if row.slug == PLATFORM_SLUG:
        raise NotErasable("the platform's own organization stays")
    if Version.objects.filter(model__organization=row, state__in=_OFFERED).exists():
        raise NotErasable("versions are on sale or in review: retire them first")
    if Hold.objects.filter(
        Q(organization_id=row.pk) | Q(creator_organization_id=row.pk), state=Hold.State.OPEN
    ).exists():
        raise NotErasable("predictions are in flight: try again in a minute")
    if TopUp.objects.filter(organization=row, state__in=TopUp.WAITING).exists():
        raise NotErasable("a payment is open: finish or cancel it first")
    if SavedCard.objects.filter(organization=row, removed_at=None).exists():
        raise NotErasable("a card is saved: remove it on the wallet page first")
    if Payout.objects.filter(organization=row, state__in=Payout.OPEN).exists():
        raise NotErasable("a payout is on its way: wait until it has arrived")
    if TopUpRefund.objects.filter(top_up__organization=row, state=TopUpRefund.State.REQUESTED).exists():
        raise NotErasable("a refund is on its way: wait until it has arrived")
    balances = {one.kind: one.posted for one in Account.objects.filter(organization=row)}
    if Dispute.objects.filter(top_up__organization=row, state=Dispute.State.OPEN).exists():
        raise NotErasable("a payment is disputed: wait until the dispute has ended")
    if any(amount < 0 for amount in balances.values()):
        raise NotErasable("the organization owes the platform money: settle that first")
    left = sum(balances.values())
    if left and not give_up:
        raise NotErasable("there is a balance left: spend it, have it paid out, or give it up", code="balance_left")
    return left


def _erase_selling(row: Organization) -> None:
    """Blank the listings and shred the weights: without its data key, a package can never be opened again."""
    DataKey.objects.filter(version__model__organization=row).delete()
    SigningKey.objects.filter(organization=row, revoked_at=None).update(revoked_at=timezone.now())
    Model.objects.filter(organization=row).update(
        title=ERASED,
        summary="",
        card_markdown="",
        industry="",
        tags=[],
        example_messages=[],
        visibility=Model.Visibility.PRIVATE,
        licence="",
        licence_text="",
        licence_required=False,
        logo="",
    )
    ListingLogo.objects.filter(model__organization=row).delete()
    AccessRequest.objects.filter(model__organization=row).update(answer="")
    Version.objects.filter(model__organization=row).update(changelog="")
    Sketch.objects.filter(version__model__organization=row).delete()
    Review.objects.filter(model__organization=row).update(appeal="", change={}, findings=[])


def _note(subject: Erasure.Subject, subject_id: UUID, by: UUID | None, left: int = 0) -> Erasure:
    return Erasure.objects.create(subject=subject, subject_id=subject_id, erased_by=by, left_nano_usd=left)
