"""Resolving an incident: a member of staff with a fresh code of their authenticator app, and nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal import auth as totp
from django.core.management import CommandError, call_command
from django.test import Client

from billing.errors import IncidentNotFound, SecondFactorRequired
from billing.incidents import clear_incident
from billing.models import Incident
from billing.payouts.freezes import Code, freezes
from marketplace.accounts.models import Organization, User
from marketplace.accounts.second_factor import MAX_TRIES, has_second_factor
from tests.billing.support import make_organization

pytestmark = pytest.mark.django_db


def make_user(name: str, *, is_staff: bool = True, app: bool = True) -> User:
    user = User.objects.create_user(f"{name}@example.com", "a long enough password", is_staff=is_staff)
    if app:
        totp.TOTP.activate(user, totp.generate_totp_secret())
    return user


def code_of(user: User) -> str:
    factor = Authenticator.objects.get(user=user).wrap().instance
    secret = totp.decrypt(factor.data["secret"])
    counters = list(totp.yield_hotp_counters_from_time())
    return str(totp.format_hotp_value(totp.hotp_value(secret, counters[len(counters) // 2])))


@pytest.fixture
def incident(db: None) -> Incident:
    return Incident.objects.create(kind=Incident.Kind.RECONCILIATION, subject="txn_1", detail={"what": "x"})


@pytest.fixture
def creator() -> Organization:
    return make_organization()


def is_frozen(organization: Organization) -> bool:
    return Code.INCIDENT in [freeze.code for freeze in freezes(organization)]


def test_a_fresh_code_of_a_member_of_staff_lets_payouts_leave_and_is_written_down(
    incident: Incident, creator: Organization
) -> None:
    user = make_user("staff")
    assert is_frozen(creator)
    clear_incident(incident_id=incident.pk, user=user, code=code_of(user), reason="Stripe's fee was corrected")
    assert not is_frozen(creator)
    incident.refresh_from_db()
    assert incident.resolved_at is not None
    assert incident.detail["what"] == "x"
    assert incident.detail["cleared"]["by"] == user.email
    assert incident.detail["cleared"]["reason"] == "Stripe's fee was corrected"


def test_without_staff_app_or_right_code_nothing_is_cleared(incident: Incident, creator: Organization) -> None:
    staff, other = make_user("staff"), make_user("other")
    for user, code in (
        (staff, "000000" if code_of(staff) != "000000" else "000001"),
        (staff, ""),
        (make_user("no-app", app=False), "123456"),
        (make_user("customer", is_staff=False), None),
        (staff, code_of(other)),
    ):
        with pytest.raises(SecondFactorRequired):
            clear_incident(incident_id=incident.pk, user=user, code=code_of(user) if code is None else code, reason="r")
    with pytest.raises(ValueError, match="why"):
        clear_incident(incident_id=incident.pk, user=staff, code=code_of(staff), reason=" ")
    assert is_frozen(creator)
    with pytest.raises(IncidentNotFound):
        clear_incident(incident_id=10**9, user=other, code=code_of(other), reason="r")


def test_a_code_works_once_and_guesses_are_few(incident: Incident) -> None:
    user = make_user("staff")
    code = code_of(user)
    assert has_second_factor(user=user, code=code)
    assert not has_second_factor(user=user, code=code)
    guesser = make_user("guesser")
    right = code_of(guesser)
    for number in range(MAX_TRIES):
        assert not has_second_factor(user=guesser, code=f"x{number}")
    assert not has_second_factor(user=guesser, code=right)


def test_secrets_of_authenticator_apps_rest_encrypted() -> None:
    user = make_user("staff", app=False)
    secret = totp.generate_totp_secret()
    totp.TOTP.activate(user, secret)
    assert secret not in str(Authenticator.objects.get(user=user).data)


def test_the_api_clears_for_staff_with_a_code_alone(incident: Incident) -> None:
    url = f"/api/v1/platform/incidents/{incident.pk}/clear"
    staff = make_user("staff")

    def post(user: User, code: str) -> Any:
        client = Client()
        client.force_login(user)
        body = {"code": code, "reason": "looked at"}
        return client.post(url, body, content_type="application/json")

    customer = make_user("customer", is_staff=False)
    assert post(customer, code_of(customer)).status_code == 403
    wrong = "000000" if code_of(staff) != "000000" else "000001"
    assert post(staff, wrong).json()["error"]["code"] == "second_factor_required"
    assert Incident.objects.filter(resolved_at=None).exists()
    client = Client()
    client.force_login(staff)
    assert [row["id"] for row in client.get("/api/v1/platform/incidents").json()["results"]] == [incident.pk]
    answer = post(staff, code_of(staff))
    assert answer.status_code == 200, answer.content
    assert not Incident.objects.filter(resolved_at=None).exists()


def test_the_command_lists_and_clears_with_a_typed_code(
    incident: Incident, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    user = make_user("staff")
    call_command("clear_incident")
    assert "txn_1" in capsys.readouterr().out
    monkeypatch.setattr("getpass.getpass", lambda _prompt: "no code")
    with pytest.raises(CommandError):
        call_command("clear_incident", str(incident.pk), user=user.email, reason="r")
    assert Incident.objects.filter(resolved_at=None).exists()
    monkeypatch.setattr("getpass.getpass", lambda _prompt: code_of(user))
    call_command("clear_incident", str(incident.pk), user=user.email, reason="r")
    assert not Incident.objects.filter(resolved_at=None).exists()


def test_the_page_of_the_second_factor_is_there_for_signed_in_users() -> None:
    client = Client()
    client.force_login(make_user("staff"))
    assert client.get("/accounts/2fa/").status_code == client.get("/dashboard/security").status_code == 200
