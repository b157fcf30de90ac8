"""Refusals of the services, as pages show them."""

from __future__ import annotations

import pytest
from django import forms

from billing.errors import BillingError, InvalidTopUpAmount
from marketplace.accounts.errors import InvalidInput, Refusal
from marketplace.web.refusals import sentence, show_in_form


class SampleForm(forms.Form):
    amount = forms.CharField()


@pytest.mark.parametrize(
    ("refusal", "where"),
    [
        (InvalidInput("must be one", field="amount"), "amount"),
        (InvalidTopUpAmount(1, 100, 1000), "amount"),
        (InvalidInput("must be one", field="scopes"), "__all__"),
        (Refusal("try again"), "__all__"),
    ],
)
def test_a_refusal_stands_beside_its_field_or_above_the_form(refusal: Refusal, where: str) -> None:
    form = SampleForm({"amount": "1"})
    assert form.is_valid()
    show_in_form(form, refusal, field_names={"amount_cents": "amount"})
    assert list(form.errors) == [where]


def test_a_fault_of_the_platform_is_not_shown() -> None:
    form = SampleForm({"amount": "1"})
    form.is_valid()
    with pytest.raises(BillingError):
        show_in_form(form, BillingError("the ledger is on fire"))
    assert not form.errors


def test_a_message_becomes_a_sentence() -> None:
    assert sentence(Refusal("set a price first")) == "Set a price first."
    assert sentence(Refusal("Nothing was charged.")) == "Nothing was charged."
