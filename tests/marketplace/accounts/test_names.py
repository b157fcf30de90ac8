"""Names that people could take for the platform's or its staff's, or that hide something, are refused everywhere."""

from __future__ import annotations

import pytest
from django.core import mail
from django.test import Client

from billing.lots import deposit
from billing.models import Account, LedgerTransaction, Lot
from marketplace.accounts import services
from marketplace.accounts.errors import InvalidInput, NotAllowed
from marketplace.accounts.models import Organization
from marketplace.accounts.names import check_name, check_visible, fold
from marketplace.teams import invites, organizations
from tests.marketplace.api.client import Api
from tests.marketplace.catalog.factories import make_base, make_organization, make_user

OFFICIAL = [
    "Intarsia",
    "INTARSIA Support",
    "intarsia-official",
    "In tar sia",
    "I.n.t.a.r.s.i.a",
    "lntarsia",
    "1ntars1a",
    "Intarsía",
    "Іntаrsіа",
    "ΙNTARSIA",
    "ｉｎｔａｒｓｉａ",
    "𝐈𝐧𝐭𝐚𝐫𝐬𝐢𝐚",
    "ıntarsıa",
    "Support",
    "Support Team",
    "The Support Desk",
    "Ѕuppоrt",
    "5upport",
    "Customer Support",
    "Admin",
    "Administrator",
    "Platform Staff",
    "Trust and Safety Support",
    "Our Official Help",
    "Billing Support",
]
FINE = [
    "Ada Lovelace",
    "Böhm & Söhne",
    "株式会社",
    "Здоровье",
    "Support Vector Labs",
    "Marquetry Works",
    "Help the Aged",
    "Inter Asia",
    "O'Brien Staffing",
    "Security Weekly",
    "v1",
    "Trust Insurance",
    "The Customer Company",
]
HIDDEN = {
    "a bidi override": "Acme\u202egnp.exe",
    "a bidi isolate": "Acme\u2067x",
    "a zero width space": "Ac\u200bme",
    "a soft hyphen": "Ac\u00adme",
    "a control": "Acme\x07",
    "a mark of direction": "Acme\u200f",
    "a tag": "Acme\U000e0041",
    "a private letter": "Acme\ue000",
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_a_name_like_the_platforms_or_its_staffs_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_name(name, field="name")
    assert (refused.value.code, refused.value.field) == ("reserved", "name")


@pytest.mark.parametrize("name", FINE)
def test_other_names_are_kept_as_they_are(name: str) -> None:
    assert check_name(name, field="name") == name


@pytest.mark.parametrize("name", HIDDEN.values(), ids=HIDDEN)
def test_a_character_that_cannot_be_seen_is_named(name: str) -> None:
    hidden = next(letter for letter in name if not letter.isascii() or not letter.isprintable())
    with pytest.raises(InvalidInput, match=rf"U\+{ord(hidden):04X}"):
        check_visible(name, field="title")


def test_blanks_and_lines_become_single_blanks() -> None:
    assert check_visible("  Acme \n\u2028 Labs\t", field="name") == "Acme Labs"


def test_numbers_stay_numbers() -> None:
    assert fold("v1") != fold("v2")


@pytest.mark.django_db
def test_every_way_to_name_an_organization_refuses_them() -> None:
    owner = make_user()
    before = Organization.objects.count()
    for slug, name in (("intarsia-help", "Fine"), ("lntarsia", "Fine"), ("fine", "Іntarsia"), ("fine", "Fi\u202ene")):
        with pytest.raises(InvalidInput):
            services.create_organization(owner=owner, slug=slug, name=name)
    assert Organization.objects.count() == before
    acme = make_organization("acme", owner)
    with pytest.raises(InvalidInput):
        organizations.rename(organization=acme, by=owner, slug="intarsia-staff")
    with pytest.raises(InvalidInput):
        organizations.change_name(organization=acme, by=owner, name="Support Team")
    assert Organization.objects.get(pk=acme.pk).slug == "acme"
    client = Client()
    client.force_login(owner)
    answer = client.post("/api/v1/organizations", {"slug": "fine", "name": "1ntarsia"}, "application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "reserved")


@pytest.mark.django_db
@pytest.mark.parametrize("email", ["support@example.com", "intarsia@example.com", "INTARSIA.staff@example.com"])
def test_an_address_that_sounds_official_names_no_organization(email: str) -> None:
    made = services.create_personal_organization(user=make_user(email))
    assert made.slug.startswith("organization") and made.name == "organization"


@pytest.mark.django_db
def test_a_model_is_not_named_like_the_platform_and_its_title_hides_nothing() -> None:
    acme = make_organization("acme")
    base = make_base().name
    api = Api.of(acme, "publish")
    for changes in ({"slug": "intarsia-chat"}, {"title": "The Intarsia Model"}, {"title": "A\u202eb"}):
        body = {"slug": "fine", "title": "Fine", "base": base, **changes}
        answer = api.post("models", body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, next(iter(changes))), error
    assert not acme.models.exists()
    answer = api.post("models", {"slug": "support", "title": "Support tickets", "base": base})
    assert answer.status_code == 201, answer.content


@pytest.mark.django_db
def test_the_subject_of_an_invite_holds_the_slug_and_never_a_name_with_an_address(
    django_capture_on_commit_callbacks,
) -> None:
    owner = make_user()
    acme = make_organization("acme", owner)
    organizations.change_name(organization=acme, by=owner, name="Win at http://evil.example now")
    with django_capture_on_commit_callbacks(execute=True):
        invites.invite(organization=acme, by=owner, email="guest@example.com", role="viewer")
    assert mail.outbox[-1].subject == "Join acme on Intarsia"


@pytest.mark.django_db
def test_an_organization_that_never_paid_mails_few_strangers() -> None:
    owner = make_user()
    acme = make_organization("acme", owner)

    def invite(number: int) -> None:
        invites.invite(organization=acme, by=owner, email=f"guest-{number}@example.com", role="viewer")

    for number in range(invites.MAX_UNPAID_MAILS_A_DAY):
        invite(number)
    with pytest.raises(NotAllowed, match="first top-up"):
        invite(99)
    deposit(
        organization=acme,
        amount_nano_usd=10**9,
        source=Account.Kind.STRIPE_CASH,
        lot_kind=Lot.Kind.PAID,
        kind=LedgerTransaction.Kind.TOP_UP,
        reference="first",
    )
    invite(99)
