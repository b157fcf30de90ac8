"""Licences are accepted as they were read; access is asked for, answered, taken back, and both sides are told."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from marketplace.access import selectors, services
from marketplace.access.models import AccessRequest, LicenceAcceptance
from marketplace.accounts.audit import PLATFORM, Actor
from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed
from marketplace.accounts.models import Organization
from marketplace.alerts.models import Alert
from marketplace.catalog.models import Model
from marketplace.catalog.services import update_model
from marketplace.catalog.services.listings import ListingText
from tests.marketplace.accounts.acts import acts_of
from tests.marketplace.catalog.factories import make_model, make_organization

pytestmark = pytest.mark.django_db


@pytest.fixture
def model() -> Model:
    found = make_model(make_organization("maker"), "thing")
    text = ListingText(licence="own", licence_text="Be kind.", licence_required=True, gated=True)
    return update_model(model=found, text=text)


@pytest.fixture
def buyer() -> Organization:
    return make_organization("buyer")


def test_an_acceptance_names_the_text_that_was_read_and_a_new_one_asks_again(model: Model, buyer: Organization) -> None:
    member = buyer.memberships.get().user
    read = model.terms_digest
    for _ in range(2):
        services.accept_licence(model=model, organization=buyer, digest=read, actor=Actor(user=member))
    row = LicenceAcceptance.objects.select_related("terms").get()
    assert (row.accepted_by, row.terms.licence, row.terms.text) == (member.pk, "own", "Be kind.")
    assert acts_of(buyer, "licence") == ["licence.accepted"]
    assert selectors.admission_of(model=model, organization=buyer).licence_accepted
    update_model(model=model, text=ListingText(licence_text="Be kinder."))
    assert not selectors.admission_of(model=model, organization=buyer).licence_accepted
    with pytest.raises(Conflict) as refused:
        services.accept_licence(model=model, organization=buyer, digest=read, actor=PLATFORM)
    assert refused.value.code == "licence_changed"
    assert LicenceAcceptance.objects.count() == 1
    update_model(model=model, text=ListingText(licence="MIT"))
    assert model.licence_text == "", "a known licence has its own text"


def test_the_creators_own_organization_is_always_admitted_and_a_stranger_is_not(model: Model) -> None:
    assert selectors.admission_of(model=model, organization=model.organization).is_admitted
    assert selectors.admission_of(model=model, organization=None).refusal_code == "access_not_granted"


def test_access_goes_from_a_reason_to_an_answer_and_back(model: Model, buyer: Organization) -> None:
    request = services.ask_for_access(model=model, organization=buyer, reason=" Research ", actor=PLATFORM)
    assert (request.state, request.reason) == ("asked", "Research")
    told = Alert.objects.get(organization=model.organization)
    assert told.kind == "model.access_asked" and "buyer asks for access" in told.subject
    with pytest.raises(Conflict, match="asked already"):
        services.ask_for_access(model=model, organization=buyer, reason="Again", actor=PLATFORM)
    services.answer_request(request=request, answer="grant", text="Welcome.", actor=PLATFORM)
    assert selectors.admission_of(model=model, organization=buyer).access_granted
    with pytest.raises(Conflict) as refused:
        services.answer_request(request=request, answer="decline", actor=PLATFORM)
    assert refused.value.code == "wrong_state"
    services.answer_request(request=request, answer="revoke", text="It ends.", actor=PLATFORM)
    assert not selectors.admission_of(model=model, organization=buyer).access_granted
    subjects = list(Alert.objects.filter(organization=buyer).order_by("pk").values_list("kind", "subject"))
    assert subjects == [
        ("access.answered", "You are let in: maker/thing"),
        ("access.answered", "The creator takes access back: maker/thing"),
    ]
    acts = acts_of(model.organization, "access")
    assert acts == ["access.revoked", "access.granted"]


def test_whoever_was_declined_asks_again_a_day_later(model: Model, buyer: Organization) -> None:
    request = services.ask_for_access(model=model, organization=buyer, reason="Research", actor=PLATFORM)
    services.answer_request(request=request, answer="decline", text="Say more.", actor=PLATFORM)
    with pytest.raises(Conflict):
        services.ask_for_access(model=model, organization=buyer, reason="More", actor=PLATFORM)
    AccessRequest.objects.update(asked_at=timezone.now() - timedelta(days=1, minutes=1))
    again = services.ask_for_access(model=model, organization=buyer, reason="More", actor=PLATFORM)
    assert (again.pk, again.state, again.reason, again.answer) == (request.pk, "asked", "More", "")
    assert Alert.objects.filter(organization=model.organization).count() == 2


def test_what_makes_no_sense_is_refused_and_leaves_nothing(model: Model, buyer: Organization) -> None:
    for reason in ("", "  \x00 ", "x" * 1001):
        with pytest.raises(InvalidInput):
            services.ask_for_access(model=model, organization=buyer, reason=reason, actor=PLATFORM)
    with pytest.raises(NotAllowed):
        services.ask_for_access(model=model, organization=model.organization, reason="Mine", actor=PLATFORM)
    update_model(model=model, text=ListingText(gated=False, licence_required=False, licence=""))
    with pytest.raises(NotAllowed):
        services.ask_for_access(model=model, organization=buyer, reason="Research", actor=PLATFORM)
    with pytest.raises(NotAllowed):
        services.accept_licence(model=model, organization=buyer, digest=model.terms_digest, actor=PLATFORM)
    assert not AccessRequest.objects.exists() and not Alert.objects.exists()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ({"licence": "own", "licence_text": " "}, "licence_text"),
        ({"licence": "", "licence_text": "Be kind."}, "licence"),
        ({"licence": "WTFPL"}, "licence"),
        ({"licence": "", "licence_text": "", "licence_required": True}, "licence"),
        ({"licence_text": "x" * 20_001}, "licence_text"),
        ({"logo": "ab" * 32}, "logo"),
    ],
)
def test_a_listing_with_half_a_licence_is_refused(model: Model, text: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        update_model(model=model, text=ListingText(**text))
    assert refused.value.field == field
