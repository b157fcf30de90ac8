"""Users and organizations come into being together or not at all."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from billing.models import Account
from billing.selectors import wallet
from billing.services import credit_promotion
from marketplace.accounts import policies, services
from marketplace.accounts.errors import Conflict, InvalidCredentials, InvalidInput, NotAllowed
from marketplace.accounts.models import Membership, Organization, User
from tests.marketplace.catalog.factories import PASSWORD, make_organization, make_user

pytestmark = pytest.mark.django_db


def sign_up(email: str, password: str = PASSWORD) -> int:
    """Send the sign-up form; the status of the answer: 302 for a new user, 200 for the form again."""
    return Client().post("/accounts/signup/", {"email": email, "password1": password}).status_code


def test_signing_up_makes_a_user_and_their_organization() -> None:
    assert sign_up("Ada.Lovelace@Example.com") == 302
    user = User.objects.get()
    membership = user.memberships.get()
    assert user.email == "ada.lovelace@example.com"
    assert (membership.role, membership.organization.slug) == ("owner", "ada-lovelace")
    signed_in = Client().post("/accounts/login/", {"login": "ada.lovelace@example.com", "password": PASSWORD})
    assert signed_in.status_code == 302


def test_the_wallet_opens_with_the_first_credit() -> None:
    organization = make_organization()
    assert wallet(organization).available == 0
    assert not Account.objects.exists()
    credit_promotion(organization=organization, amount_nano_usd=5, reference="welcome")
    assert wallet(organization).available == 5


@pytest.mark.parametrize(
    ("email", "slug"),
    [
        ("a@x.io", "a"),
        ("Zoë.K@x.io", "zo-k"),
        ("+++@x.io", "organization"),
        ("x" * 60 + "@x.io", "x" * 30),
        ("--a--@x.io", "a"),
    ],
)
def test_the_slug_comes_from_the_address(email, slug) -> None:
    user = make_user()
    user.email = email
    assert services.create_personal_organization(user=user).slug == slug


@pytest.mark.parametrize("taken", ["ada", "docs"])
def test_a_taken_or_reserved_name_gets_a_suffix(taken) -> None:
    make_organization("ada")
    sign_up(f"{taken}@example.com")
    slug = User.objects.get(email=f"{taken}@example.com").memberships.get().organization.slug
    assert slug.startswith(f"{taken}-") and slug not in policies.RESERVED_SLUGS


@pytest.mark.parametrize("password", ["short", "password123", "ada.lovelace@"])
def test_a_weak_password_makes_nobody(password) -> None:
    assert sign_up("ada.lovelace@example.com", password) == 200
    assert not User.objects.exists() and not Organization.objects.exists()


def test_an_address_signs_up_once_in_any_case() -> None:
    assert sign_up("ada@example.com") == 302
    assert sign_up("ADA@EXAMPLE.COM") == 200
    assert sign_up("not an address") == 200
    assert User.objects.count() == Organization.objects.count() == 1


def test_a_new_organization_is_referred_by_the_one_that_the_form_names() -> None:
    referrer = make_organization("bringer")
    form = {"email": "ada@example.com", "password1": PASSWORD}
    assert b"?ref=bringer" in Client().get("/accounts/signup/?ref=bringer").content
    assert Client().post("/accounts/signup/?ref=bringer", form).status_code == 302
    brought = Organization.objects.get(slug="ada")
    assert brought.referred_by == referrer and brought.referral_ends_at is not None
    assert timedelta(days=364) < brought.referral_ends_at - timezone.now() <= timedelta(days=365)
    for change in ({"referred_by": None, "referral_ends_at": None}, {"referral_ends_at": timezone.now()}):
        with pytest.raises(IntegrityError, match="stands"), transaction.atomic():
            Organization.objects.filter(pk=brought.pk).update(**change)
    with pytest.raises(IntegrityError, match="stands"), transaction.atomic():
        Organization.objects.filter(pk=referrer.pk).update(referred_by=brought, referral_ends_at=timezone.now())


@pytest.mark.parametrize("ref", ["nobody", "x" * 300, "%00", "%F0%9F", "../admin"])
def test_a_referrer_that_is_none_is_forgotten(ref: str) -> None:
    form = {"email": "ada@example.com", "password1": PASSWORD}
    assert Client().get(f"/accounts/signup/?ref={ref}").status_code == 200
    assert Client().post(f"/accounts/signup/?ref={ref}", form).status_code == 302
    assert Organization.objects.get(slug="ada").referred_by is None


def test_an_organization_refers_no_member_of_its_own() -> None:
    user = make_user()
    referrer = make_organization("bringer", owner=user)
    with pytest.raises(InvalidInput):
        services.create_organization(owner=user, slug="second", name="Second", referred_by=referrer)
    assert not Organization.objects.filter(slug="second").exists()


def test_if_the_organization_cannot_be_made_nothing_remains(monkeypatch) -> None:
    def broken(*, user: User, referred_by: Organization | None) -> Organization:
        raise RuntimeError(user.email)

    monkeypatch.setattr(services, "create_personal_organization", broken)
    with pytest.raises(RuntimeError):
        sign_up("ada@example.com")
    assert not User.objects.exists() and not Organization.objects.exists()


@pytest.mark.parametrize("slug", ["", "Upper", "-a", "a-", "a b", "é", "a\n", "a" * 41, "admin", "intarsia"])
def test_a_bad_or_reserved_name_makes_no_organization(slug) -> None:
    owner = make_user()
    with pytest.raises(InvalidInput):
        services.create_organization(owner=owner, slug=slug, name="x")
    assert not Organization.objects.exists() and not Membership.objects.exists()


def test_a_taken_name_is_a_conflict() -> None:
    make_organization("acme")
    with pytest.raises(Conflict):
        services.create_organization(owner=make_user(), slug="acme", name="x")
    assert Organization.objects.count() == 1


def test_a_user_owns_a_limited_number_of_organizations(monkeypatch) -> None:
    monkeypatch.setattr(services, "MAX_ORGANIZATIONS_PER_USER", 1)
    user = make_user()
    make_organization("one", owner=user)
    with pytest.raises(NotAllowed):
        make_organization("two", owner=user)


def test_authentication_gives_one_answer_for_every_reason() -> None:
    user = make_user("ada@example.com")
    assert services.authenticate_user(email="ADA@example.com", password=PASSWORD) == user
    messages = set()
    for email, password in (("ada@example.com", "x"), ("nobody@example.com", PASSWORD), ("", "")):
        with pytest.raises(InvalidCredentials) as refusal:
            services.authenticate_user(email=email, password=password)
        messages.add(refusal.value.message)
    assert len(messages) == 1
