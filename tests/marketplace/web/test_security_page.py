"""Fresh sessions, second factors and the list of sessions, on pages and in the API."""

from __future__ import annotations

from typing import Any

from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal import auth as totp
from allauth.usersessions.models import UserSession
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from marketplace.accounts.models import ApiKey, AuditEntry, Membership, User
from marketplace.accounts.policies import is_operator
from marketplace.catalog.models import Version
from tests.marketplace.catalog.factories import PASSWORD
from tests.marketplace.web.conftest import World
from tests.marketplace.web.sessions import stale
from tests.marketplace.web.test_access import assert_clean

SECURITY = "/dashboard/security"
PRICE = {"input": "1", "cached_input": "1", "output": "1", "per_prediction": "0"}


def code_of(user: User) -> str:
    """The code of the person's authenticator app; the one before the clock's is right, too (MFA_TOTP_TOLERANCE)."""
    secret = totp.decrypt(Authenticator.objects.get(user=user, type="totp").data["secret"])
    counters = list(totp.yield_hotp_counters_from_time())
    return str(totp.format_hotp_value(totp.hotp_value(secret, counters[len(counters) // 2])))


def enrol(user: User) -> None:
    totp.TOTP.activate(user, totp.generate_totp_secret())


def test_a_stale_session_is_asked_and_the_form_goes_on_afterwards(world: World) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.creator)
    stale(client)
    path = f"/dashboard/models/transactions/versions/{world.published.number}/revoke"
    page = client.get("/dashboard/models/transactions")
    assert page.status_code == 200  # reading is not asked
    token = {"csrfmiddlewaretoken": page.context["csrf_token"]}
    asked = client.post(path, token | {"reason": "It was trained on the wrong rows."})
    assert asked.status_code == 302 and asked.headers["Location"].startswith("/accounts/reauthenticate/?next=")
    world.published.refresh_from_db()
    assert world.published.state == Version.State.PUBLISHED
    gate = client.get(asked.headers["Location"])
    assert "Confirm that it is you" in gate.content.decode()
    proof = {"csrfmiddlewaretoken": gate.context["csrf_token"], "password": "not it", "next": path}
    assert client.post("/accounts/reauthenticate/", proof).status_code == 200
    done = client.post("/accounts/reauthenticate/", proof | {"password": PASSWORD})
    assert done.status_code == 302
    world.published.refresh_from_db()
    assert world.published.state == Version.State.REVOKED


def test_a_code_proves_it_too(world: World) -> None:
    enrol(world.creator)
    client = stale(world.client(world.creator))
    assert client.post("/dashboard/models/transactions", PRICE).status_code == 302
    before = world.model.prices.count()
    proof = {"code": code_of(world.creator), "next": "/dashboard/models/transactions"}
    assert client.post("/accounts/2fa/reauthenticate/", proof).status_code == 302
    assert world.model.prices.count() == before + 1


# By whom, where and with which form.
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("creator", "/dashboard/payouts", {}),
    ("creator", "/dashboard/payouts/terms", {}),
    ("creator", "/dashboard/payouts/setup", {}),
    ("creator", "/dashboard/payouts/stripe", {}),
    ("creator", "/dashboard/models/transactions", PRICE),
    ("creator", "/dashboard/models/transactions/royalties", {}),
    ("creator", "/dashboard/models/transactions/promise", {}),
    ("consumer", "/dashboard/wallet/cards", {}),
    ("consumer", "/dashboard/wallet/automatic", {}),
    ("consumer", "/dashboard/security/organization", {"required": "yes"}),
    ("consumer", "/dashboard/keys", {"name": "k", "scopes": ["publish"], "days": "0"}),
    ("consumer", "/dashboard/keys", {"name": "k", "scopes": ["predict"], "days": "0"}),
    ("staff", "/platform/reviews/00000000-0000-4000-8000-000000000000/approve", {}),
    ("staff", "/platform/disputes/dp_1", {}),
]


def test_money_weights_and_roles_ask(world: World) -> None:
    before, recorded = (ApiKey.objects.count(), world.model.prices.count()), AuditEntry.objects.count()
    clients = {name: stale(world.client(getattr(world, name))) for name in ("creator", "consumer", "staff")}
    rotation = ("consumer", f"/dashboard/keys/{world.key.pk}/rotate", {"overlap": "3600"})
    for who, path, data in [*ASKED, rotation]:
        answer = clients[who].post(path, data)
        assert answer.status_code == 302 and answer.headers["Location"].startswith("/accounts/reauthenticate/"), path
    assert (ApiKey.objects.count(), world.model.prices.count()) == before and AuditEntry.objects.count() == recorded


def test_files_are_to_be_chosen_again(world: World) -> None:
    client = stale(world.client(world.staff))
    answer = client.post("/platform/disputes/dp_1", {"receipt": SimpleUploadedFile("a.pdf", b"%PDF-")})
    assert answer.headers["Location"].startswith("/accounts/reauthenticate/")
    assert "choose the files once more" in client.get(answer.headers["Location"]).content.decode()


def test_the_api_is_no_way_around(world: World) -> None:
    client = stale(world.client(world.creator))
    for method, path in (
        ("post", f"versions/{world.verified.pk}/publish"),
        ("post", f"versions/{world.published.pk}/revoke"),
        ("post", "models/ledgerline/transactions/prices"),
        ("post", "payouts"),
        ("patch", "payouts/overview"),
        ("post", "cards"),
        ("put", "auto-top-up"),
        ("put", "organizations/ledgerline/second-factor"),
    ):
        answer = getattr(client, method)(f"/api/v1/{path}", {}, content_type="application/json")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "reauthentication_required"), path
    buyer = stale(world.client(world.consumer))
    for who, path, wanted in (
        (client, "keys", {"name": "k", "scopes": ["publish"]}),
        (buyer, "keys", {"name": "k", "scopes": ["predict"]}),
        (buyer, f"keys/{world.key.pk}/rotate", {}),
    ):
        answer = who.post(f"/api/v1/{path}", wanted, content_type="application/json")
        assert answer.json()["error"]["code"] == "reauthentication_required", path
    assert ApiKey.objects.count() == 1
    world.verified.refresh_from_db()
    assert world.verified.state == Version.State.VERIFIED


def test_staff_without_a_second_factor_reach_nothing_and_are_told_why(world: World) -> None:
    Authenticator.objects.filter(user=world.staff).delete()
    client = world.client(world.staff)
    for path in ("/platform/", "/platform/reviews", "/platform/disputes"):
        assert client.get(path).headers["Location"] == reverse("web:security")
    assert "Staff need a second factor" in client.get(SECURITY).content.decode()
    answer = client.get("/api/v1/platform/summary")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "second_factor_required")
    assert not is_operator(user=world.staff, key_organization_slug=None)
    enrol(world.staff)
    assert client.get("/platform/").status_code == 200


def test_an_organization_asks_its_members_for_a_second_factor(world: World) -> None:
    owner, developer = world.client(world.consumer), world.client(world.developer)
    switch = reverse("web:require_second_factor")
    owner.post(switch, {"required": "yes"})  # without one, it would lock itself out
    world.buyer.refresh_from_db()
    assert not world.buyer.requires_second_factor
    enrol(world.consumer)
    assert developer.post(switch, {"required": "yes"}).status_code == 403
    assert owner.post(switch, {"required": "yes"}).status_code == 302
    assert AuditEntry.objects.latest("id").act == "second_factor.required"
    for path in ("/dashboard/", "/dashboard/comparisons"):
        page = developer.get(path)
        assert page.status_code == 403 and "A second factor is needed" in page.content.decode()
    assert developer.get(SECURITY).status_code == 200
    for answer in (developer.post("/playground/token"), developer.get("/api/v1/trials")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "second_factor_required")
    key = {"authorization": f"Bearer {world.key_text}"}
    assert Client().get("/api/v1/trials", headers=key).status_code == 200
    enrol(world.developer)
    assert developer.get("/dashboard/").status_code == 200
    body = {"required": False}
    path = "/api/v1/organizations/northbank/second-factor"
    assert developer.put(path, body, content_type="application/json").status_code == 403
    assert owner.put(path, body, content_type="application/json").json() == {"required": False}
    Membership.objects.filter(user=world.consumer).update(role=Membership.Role.VIEWER)
    assert owner.put(path, body, content_type="application/json").status_code == 403


def test_a_token_takes_the_second_factor_and_codes_count_once(world: World) -> None:
    enrol(world.consumer)
    recovery = RecoveryCodes.activate(world.consumer).get_unused_codes()[0]
    wanted = {"email": world.consumer.email, "password": PASSWORD, "scopes": ["publish"]}

    def ask(**code: str) -> int:
        return int(Client().post("/api/v1/tokens", wanted | code, content_type="application/json").status_code)

    keys = ApiKey.objects.count()
    assert ask() == ask(code="x") == 403
    assert ApiKey.objects.count() == keys
    code = code_of(world.consumer)
    assert [ask(code=code), ask(code=code), ask(code=recovery)] == [201, 403, 201]


def test_sign_in_asks_for_the_code(world: World) -> None:
    enrol(world.consumer)
    client = Client()
    asked = client.post("/accounts/login/", {"login": world.consumer.email, "password": PASSWORD})
    assert asked.headers["Location"] == "/accounts/2fa/authenticate/"
    assert client.get("/dashboard/").status_code == 302
    assert "authenticator app" in client.get("/accounts/2fa/authenticate/").content.decode()
    assert client.post("/accounts/2fa/authenticate/", {"code": code_of(world.consumer)}).status_code == 302
    assert client.get("/dashboard/").status_code == 200


def test_sessions_are_listed_and_ended_one_by_one_and_all_others(world: World) -> None:
    here, there, third = (world.client(world.consumer) for _ in range(3))
    there.get("/dashboard/", headers={"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0"})
    third.get("/dashboard/")
    page = here.get(SECURITY).content.decode()
    assert "Firefox on Linux" in page and "127.0.0.1" in page and page.count("<form method") >= 3
    row = UserSession.objects.get(session_key=there.session.session_key)
    end = reverse("web:end_session", kwargs={"session_id": row.pk})
    assert world.client(world.stranger).post(end).status_code == 404
    assert there.get("/dashboard/").status_code == 200
    assert here.post(end).status_code == 302
    assert there.get("/dashboard/").status_code == 302 and third.get("/dashboard/").status_code == 200
    here.post(reverse("web:end_other_sessions"))
    assert third.get("/dashboard/").status_code == 302 and here.get("/dashboard/").status_code == 200


def test_the_pages_of_second_factors_need_no_inline_code(world: World) -> None:
    client = Client(SERVER_NAME="localhost")
    client.force_login(world.consumer)
    enrol(world.consumer)
    RecoveryCodes.activate(world.consumer)
    for path in ("", "webauthn/", "webauthn/add/", "totp/deactivate/", "recovery-codes/", "recovery-codes/generate/"):
        page = client.get(f"/accounts/2fa/{path}")
        assert page.status_code == 200, path
        assert_clean(page)
    for path in ("reauthenticate/", "2fa/reauthenticate/", "2fa/reauthenticate/webauthn/"):
        assert_clean(stale(client).get(f"/accounts/{path}"))
    Authenticator.objects.all().delete()
    page = world.client(world.consumer).get("/accounts/2fa/totp/activate/")
    assert page.status_code == 200 and b"<svg" in page.content
    assert_clean(page)


def test_the_api_lists_and_ends_sessions_of_the_person_alone(world: World) -> None:
    here, there = (world.client(world.consumer) for _ in range(2))
    assert there.get("/dashboard/").status_code == 200
    rows = here.get("/api/v1/sessions").json()["results"]
    assert len(rows) == 2 and sum(row["current"] for row in rows) == 1
    other = next(row["id"] for row in rows if not row["current"])
    assert world.client(world.stranger).delete(f"/api/v1/sessions/{other}").status_code == 404
    key = {"authorization": f"Bearer {world.key_text}"}
    assert Client().get("/api/v1/sessions", headers=key).json()["error"]["code"] == "session_required"
    assert here.delete(f"/api/v1/sessions/{other}").status_code == 204
    assert there.get("/dashboard/").status_code == 302
    assert here.delete("/api/v1/sessions").status_code == 204 and here.get("/dashboard/").status_code == 200
