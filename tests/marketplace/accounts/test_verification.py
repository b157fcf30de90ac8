"""A person with no verified address can look around, and neither publish nor spend."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

import pytest
from allauth.account.models import EmailAddress
from django.core import mail
from django.core.cache import cache
from django.test import Client

from billing.auto_top_ups import set_auto_top_up
from billing.cards import open_card_page
from billing.models import TopUp
from billing.top_ups import start_top_up
from marketplace.accounts import services
from marketplace.accounts.models import ApiKey, Organization, User
from marketplace.accounts.verification import EmailUnverified
from marketplace.catalog.models import Version
from marketplace.publishing import services as publishing
from marketplace.vault import services as vault
from tests.marketplace.catalog.factories import PASSWORD, make_model, make_organization, make_user
from tests.marketplace.vault.factories import make_sold

pytestmark = pytest.mark.django_db
LINK = re.compile(r"http://localhost:8000(/accounts/confirm-email/\S+)")


@pytest.fixture
def newcomer() -> tuple[Client, User, Organization]:
    """A person who signed up by the form, as their browser."""
    client = Client()
    answer = client.post("/accounts/signup/", {"email": "ada@example.com", "password1": PASSWORD})
    assert answer.status_code == 302
    user = User.objects.get()
    return client, user, user.organizations.get()


def test_the_mailed_link_opens_what_was_closed(newcomer: tuple[Client, User, Organization]) -> None:
    client, _, _ = newcomer
    data = {"name": "first", "scopes": ["predict"], "days": "0"}
    page = client.get("/dashboard/").content.decode()
    assert "Verify your e-mail address" in page and "ada@example.com" in page
    refused = client.post("/dashboard/keys", data)
    assert refused.status_code == 400 and "Verify your e-mail address first" in refused.content.decode()
    token = client.post("/playground/token")
    assert (token.status_code, token.json()["error"]["code"]) == (403, "email_unverified")
    assert not ApiKey.objects.exists()

    message = mail.outbox[0]
    assert message.from_email == "Intarsia <no-reply@localhost>" and "Intarsia" in message.subject
    found = LINK.search(str(message.body))
    assert found is not None
    asked = client.get(found[1])
    assert "ada@example.com" in asked.content.decode() and not EmailAddress.objects.filter(verified=True).exists()
    assert client.post(found[1]).headers["Location"] == "/dashboard/"
    assert "Verify your e-mail" not in client.get("/dashboard/").content.decode()
    assert client.post("/dashboard/keys", data).status_code == 201
    assert client.post("/playground/token").status_code == 200


def test_the_link_is_sent_again_under_the_public_address_whatever_host_was_named(
    newcomer: tuple[Client, User, Organization],
) -> None:
    client, _, _ = newcomer
    mail.outbox.clear()
    cache.clear()  # three minutes later
    assert client.post("/dashboard/security/verify", headers={"host": "127.0.0.1:9999"}).status_code == 302
    assert len(mail.outbox) == 1 and LINK.search(str(mail.outbox[0].body))
    client.post("/dashboard/security/verify")
    assert len(mail.outbox) == 1


def test_the_api_refuses_the_same(newcomer: tuple[Client, User, Organization]) -> None:
    client, _, _ = newcomer
    body = {"email": "ada@example.com", "password": PASSWORD, "scopes": ["publish"]}
    for path, wanted in (
        ("tokens", body),
        ("keys", {"name": "k", "scopes": ["account"]}),
        ("topups", {"amount_cents": 1_000}),
    ):
        answer = client.post(f"/api/v1/{path}", wanted, content_type="application/json")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "email_unverified"), path
    assert not ApiKey.objects.exists() and not TopUp.objects.exists()
    read = client.post("/api/v1/keys", {"name": "k", "scopes": ["read"]}, content_type="application/json")
    assert read.status_code == 201


def test_every_service_that_publishes_or_spends_asks() -> None:
    owner = make_user()
    organization = make_organization(owner=owner)
    EmailAddress.objects.filter(user=owner).update(verified=False)
    model = make_model(organization)
    sold = make_sold(Version.State.VERIFIED, model=model)
    signing_key = sold.version.signing_key or vault.register_signing_key(
        organization=organization, public_key=b"k" * 32
    )
    urls = {"success_url": "https://x", "cancel_url": "https://x"}
    attempts: list[Callable[[], object]] = [
        lambda: services.create_api_key(organization=organization, name="k", scopes=["predict"], created_by=owner),
        lambda: services.open_playground(user=owner, organization=organization),
        lambda: start_top_up(organization=organization, amount_cents=1_000, by=owner.pk, **urls),
        lambda: open_card_page(key=uuid.uuid4(), organization=organization, by=owner.pk, **urls),
        lambda: set_auto_top_up(
            organization=organization,
            card_id=uuid.uuid4(),
            threshold_cents=1,
            amount_cents=500,
            monthly_limit_cents=500,
            by=owner.pk,
        ),
        lambda: publishing.start_version(model=model, signing_key=signing_key, package_size=10, by=owner.pk),
        lambda: publishing.publish_version(version=sold.version, by=owner.pk),
    ]
    for attempt in attempts:
        with pytest.raises(EmailUnverified):
            attempt()
    sold.version.refresh_from_db()
    assert sold.version.state == Version.State.VERIFIED and Version.objects.count() == 1
    assert not ApiKey.objects.exists() and not TopUp.objects.exists()


def test_keys_that_exist_go_on_and_rotate() -> None:
    owner = make_user()
    organization = make_organization(owner=owner)
    key, text = services.create_api_key(organization=organization, name="k", scopes=["predict"], created_by=owner)
    EmailAddress.objects.filter(user=owner).update(verified=False)
    assert services.authenticate_api_key(text=text) == key
    services.rotate_api_key(key=key, created_by=owner)
