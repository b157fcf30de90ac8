"""Forms: good input does what it says, nonsense comes back with the reason and moves nothing."""

from __future__ import annotations

import pytest
from django.core import mail
from django.urls import reverse

from billing.errors import PaymentProviderUnavailable
from billing.limited_keys import set_key_budget
from billing.models import BudgetNode, TopUp
from marketplace.accounts.models import ApiKey, Membership, User
from marketplace.catalog import search
from marketplace.web.views import wallet as wallet_views
from tests.database import as_owner
from tests.marketplace.web.conftest import World

KEYS, WALLET, MODEL = "/dashboard/keys", "/dashboard/wallet", "/dashboard/models/transactions"


def test_a_new_key_is_shown_once_and_never_again(world: World) -> None:
    client = world.client(world.consumer)
    response = client.post(KEYS, {"name": "robot", "scopes": ["predict"], "days": "30", "monthly_limit": "5.50"})
    assert response.status_code == 201
    key = ApiKey.objects.get(name="robot")
    page = response.content.decode()
    assert f"ik_{key.prefix}_" in page
    assert "no-store" in response.headers["Cache-Control"]
    assert key.scopes == ["predict"] and key.expires_at is not None
    assert BudgetNode.objects.get(api_key=key).monthly_limit_nano_usd == 5_500_000_000
    secret = page.split(f"ik_{key.prefix}_")[1].split("<")[0]
    assert secret not in client.get(KEYS).content.decode()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"name": "", "scopes": ["predict"], "days": "0"}, "required"),
        ({"name": "n\x00ul", "scopes": ["predict"], "days": "0"}, "Null characters"),
        ({"name": "kept", "scopes": ["root"], "days": "0"}, "not one of the available"),
        ({"name": "kept", "days": "0"}, "required"),
        ({"name": "kept", "scopes": ["predict"], "days": "soon"}, "not one of the available"),
        ({"name": "kept", "scopes": ["predict"], "days": "0", "monthly_limit": "-3"}, "greater than or equal"),
        ({"name": "kept", "scopes": ["predict"], "days": "0", "monthly_limit": "NaN"}, "Enter a number"),
    ],
)
def test_a_bad_key_form_creates_nothing_and_says_why(world: World, data: dict, complaint: str) -> None:
    before = ApiKey.objects.count()
    response = world.client(world.consumer).post(KEYS, data)
    page = response.content.decode()
    assert response.status_code == 400
    assert complaint in page
    assert ApiKey.objects.count() == before
    if data["name"] == "kept":
        assert 'value="kept"' in page


def test_the_list_of_keys_forgets_what_was_spent_in_an_earlier_month(world: World) -> None:
    def shown() -> str:
        return " ".join(world.client(world.consumer).get(reverse("web:keys")).content.decode().split())

    set_key_budget(api_key=world.key, monthly_limit_nano_usd=50 * 10**9, total_limit_nano_usd=None)
    with as_owner():
        BudgetNode.objects.update(spent_this_month_nano_usd=7 * 10**9)
    assert "$7.00 of $50.00" in shown()
    with as_owner():
        BudgetNode.objects.update(month="2020-01-01")
    assert "$0.00 of $50.00" in shown()


def test_revoking_a_key_revokes_it(world: World) -> None:
    client = world.client(world.consumer)
    response = client.post(reverse("web:revoke_key", kwargs={"key_id": world.key.pk}), follow=True)
    world.key.refresh_from_db()
    assert world.key.revoked_at is not None
    assert "revoked" in response.content.decode()


@pytest.mark.parametrize("amount", ["", "0", "-5", "0.99", "10000.01", "12.345", "1e9", "lots", "Infinity"])
def test_a_bad_amount_starts_no_top_up(world: World, amount: str) -> None:
    response = world.client(world.consumer).post(WALLET, {"amount": amount})
    assert response.status_code == 400
    assert 'role="alert"' in response.content.decode()
    assert f'value="{amount}"' in response.content.decode() or amount == ""
    assert not TopUp.objects.exists()


def test_when_stripe_is_away_the_page_says_that_no_money_moved(world: World, monkeypatch) -> None:
    def away(**_arguments: object) -> None:
        raise PaymentProviderUnavailable

    monkeypatch.setattr(wallet_views, "start_top_up", away)
    response = world.client(world.consumer).post(WALLET, {"amount": "25.00"})
    assert response.status_code == 503
    page = response.content.decode()
    assert "no money moved" in page and 'value="25.00"' in page


def test_a_good_amount_leads_to_the_payment_page(world: World, monkeypatch) -> None:
    asked: dict[str, object] = {}

    def start(**arguments: object) -> TopUp:
        asked.update(arguments)
        return TopUp(organization=world.buyer, amount_cents=2500, checkout_url="https://checkout.stripe.com/c/pay/x")

    monkeypatch.setattr(wallet_views, "start_top_up", start)
    response = world.client(world.consumer).post(WALLET, {"amount": "25.00"})
    assert response.status_code == 302
    assert response.headers["Location"] == "https://checkout.stripe.com/c/pay/x"
    assert "https://checkout.stripe.com" in response.headers["Content-Security-Policy"]
    assert (asked["organization"], asked["amount_cents"]) == (world.buyer, 2500)


def test_a_price_is_set_in_exact_integers(world: World) -> None:
    data = {"input": "0.25", "cached_input": "0.000001", "output": "1", "per_prediction": "0.000000001"}
    assert world.client(world.creator).post(MODEL, data).status_code == 302
    price = world.model.prices.order_by("-id").first()
    assert price is not None
    found = (price.input_micro_usd_per_mtok, price.cached_input_micro_usd_per_mtok, price.output_micro_usd_per_mtok)
    assert found == (250_000, 1, 1_000_000) and price.per_prediction_nano_usd == 1


@pytest.mark.parametrize(
    "changes", [{"input": "-1"}, {"input": "free"}, {"output": "10001"}, {"cached_input": "9"}, {"input": "0.0000001"}]
)
def test_a_bad_price_changes_nothing_and_keeps_what_was_typed(world: World, changes: dict) -> None:
    before = world.model.prices.count()
    data = {"input": "0.2", "cached_input": "0.1", "output": "0.8", "per_prediction": "0", **changes}
    response = world.client(world.creator).post(MODEL, data)
    assert response.status_code == 400
    assert world.model.prices.count() == before
    assert f'value="{next(iter(changes.values()))}"' in response.content.decode()


def test_versions_are_published_and_retired_but_never_backwards(world: World) -> None:
    client = world.client(world.creator)
    client.post(f"{MODEL}/versions/2/publish")
    world.verified.refresh_from_db()
    assert world.verified.state == "published"
    client.post(f"{MODEL}/versions/2/retire")
    response = client.post(f"{MODEL}/versions/2/publish", follow=True)
    world.verified.refresh_from_db()
    assert world.verified.state == "retired"
    assert "Nothing changed" in response.content.decode()
    assert client.post(f"{MODEL}/versions/9/retire").status_code == 404


def test_revoking_without_a_reason_revokes_nothing(world: World) -> None:
    client = world.client(world.creator)
    assert client.post(f"{MODEL}/versions/1/revoke", {"reason": " "}).status_code == 400
    world.published.refresh_from_db()
    assert world.published.state == "published"
    assert client.post(f"{MODEL}/versions/1/revoke", {"reason": "leaked data"}).status_code == 302
    world.published.refresh_from_db()
    assert world.published.state == "revoked"
    assert "leaked data" in client.get(MODEL).content.decode()


def test_signing_up_makes_a_user_with_an_organization(world: World) -> None:
    client = world.client(None)
    data = {"email": "new@example.com", "password1": "a quiet meadow 77"}
    response = client.post("/accounts/signup/", data, follow=True)
    assert response.redirect_chain[-1][0] == "/dashboard/"
    assert Membership.objects.get(user__email="new@example.com").role == "owner"


@pytest.mark.parametrize(
    "data", [{"email": "nobody", "password1": "a quiet meadow 77"}, {"email": "new@example.com", "password1": "short"}]
)
def test_a_bad_sign_up_makes_nobody(world: World, data: dict) -> None:
    before = User.objects.count()
    response = world.client(None).post("/accounts/signup/", data)
    page = response.content.decode()
    assert response.status_code == 200 and 'class="errors"' in page and data["email"] in page
    assert User.objects.count() == before


def test_a_password_is_reset_by_mail(world: World) -> None:
    client = world.client(None)
    client.post("/accounts/password/reset/", {"email": "consumer@example.com"})
    link = next(word for word in str(mail.outbox[-1].body).split() if "/password/reset/key/" in word)
    path = "/" + link.split("/", 3)[3]
    form = client.get(path, follow=True)
    assert "Choose a new password" in form.content.decode()
    done = client.post(
        form.redirect_chain[-1][0], {"password1": "a quiet meadow 77", "password2": "a quiet meadow 77"}, follow=True
    )
    assert "Password changed" in done.content.decode()
    world.consumer.refresh_from_db()
    assert world.consumer.check_password("a quiet meadow 77")
    assert "does not work any more" in world.client(None).get(path, follow=True).content.decode()


def test_the_catalogue_survives_nonsense(world: World) -> None:
    for query in ("?q=%00", "?page=-1", "?page=x", "?industry='%22%3E", "?order=drop", "?q=" + "a" * 5000):
        assert world.client(None).get(f"/models/{query}").status_code == 200, query


def test_search_finds_filters_and_says_when_there_is_nothing(world: World) -> None:
    client = world.client(None)
    assert "Ledgerline Transactions" in client.get("/models/?q=bank").content.decode()
    assert "Nothing matches" in client.get("/models/?q=zebra").content.decode()
    assert "Nothing matches" in client.get("/models/?industry=health").content.decode()
    fragment = client.get("/models/?q=bank", headers={"HX-Request": "true"}).content.decode()
    assert "Ledgerline Transactions" in fragment and "<html" not in fragment


def test_a_result_says_why_it_came(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = world.client(None)
    page = client.get("/models/?q=ledgerlin transaktions").content.decode()
    assert "<mark>Ledgerline Transactions</mark>" in page.replace("</mark> <mark>", " ")
    assert "similar in meaning" not in page and "<mark>" not in client.get("/models/").content.decode()
    hit = search.Hit(world.model.pk, frozenset({"meaning"}))
    monkeypatch.setattr(search, "find", lambda query, filters: [hit])
    page = client.get("/models/?q=<b>statement</b>").content.decode()
    assert "similar in meaning" in page and "<mark>" not in page and "<b>statement" not in page


def test_the_calculator_is_exact_and_explains_bad_numbers(world: World) -> None:
    client = world.client(None)
    path = "/models/ledgerline/transactions/price"
    good = client.get(path, {"prompt_tokens": "100", "answer_tokens": "10", "predictions": "1000000"}).content.decode()
    assert "$28.00" in good and "$0.000028" in good
    bad = client.get(path, {"prompt_tokens": "many", "answer_tokens": "-1", "predictions": ""}).content.decode()
    assert "Prompt tokens: Enter a whole number" in bad and "$" not in bad
