"""Checkout pages in the hands of a browser: what they ask of a payer, and what they keep of a form that is refused."""

from __future__ import annotations

from urllib.parse import urlencode

from devstack.stripe_double.app import DoubleApp
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.messages import JsonObject, Request, Response
from tests.devstack.stripe_double.support import client_of, make_double

TAXED: JsonObject = {
    "automatic_tax": {"enabled": True},
    "billing_address_collection": "required",
    "tax_id_collection": {"enabled": True},
}


def open_page(double: StripeDouble, **parameters: object) -> str:
    session = client_of(double).v1.checkout.sessions.create(
        {
            "mode": "payment",
            "line_items": [
                {
                    "quantity": 1,
                    "price_data": {
                        "currency": "usd",
                        "unit_amount": 1_000,
                        "tax_behavior": "exclusive",
                        "product_data": {"name": "Credit"},
                    },
                }
            ],
            "success_url": "http://shop/back",
            **parameters,
        }
    )
    return str(session.id)


def ask(double: StripeDouble, page: str, **form: str) -> Response:
    method = "POST" if form else "GET"
    request = Request(method, f"/checkout/{page}", body=urlencode(form).encode())
    return DoubleApp(double, webhook_url=None)._respond(request)


def test_a_page_asks_for_country_and_tax_id_where_it_was_opened_with_tax() -> None:
    double = make_double()
    plain, taxed = ask(double, open_page(double)).body.decode(), ask(double, open_page(double, **TAXED)).body.decode()
    assert 'name="country"' not in plain and 'name="tax_id"' not in plain
    assert '<select name="country">' in taxed and 'name="tax_id"' in taxed and "<option selected>US</option>" in taxed


def test_the_tax_is_that_of_the_country_and_tax_id_that_were_typed() -> None:
    double = make_double()
    for form, total in (
        ({"country": "US"}, 1_000),
        ({"country": "DE"}, 1_190),
        ({"country": "FR"}, 1_200),
        ({"country": "FR", "tax_id": "FR12345678901"}, 1_000),
        ({"country": "DE", "tax_id": "DE123456789"}, 1_190),
    ):
        page = open_page(double, **TAXED)
        assert ask(double, page, card="pm_card_visa", **form).status == 303
        assert client_of(double).v1.checkout.sessions.retrieve(page).amount_total == total


def test_a_form_that_is_refused_takes_no_money_and_loses_nothing_of_what_was_typed() -> None:
    double = make_double()
    page = open_page(double, **TAXED)
    form = {"name": 'Ada & "Sons"', "country": "NL", "card": "pm_card_mastercard"}
    for wrong, said in (({"tax_id": "123"}, "no VAT number"), ({"country": "Narnia"}, "Choose a country")):
        answer = ask(double, page, **(form | wrong))
        text = answer.body.decode()
        assert answer.status == 402 and said in text
        assert "Ada &amp; &quot;Sons&quot;" in text and 'value="pm_card_mastercard" checked' in text
    assert "<option selected>NL</option>" in ask(double, page, **(form | {"tax_id": "123"})).body.decode()
    assert client_of(double).v1.charges.list().data == []
    assert double.payer["name"] == "Test Payer"
