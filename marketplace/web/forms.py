"""Forms: text from strangers into typed values. A form shows refused values again, with the reason beside each."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar

from django import forms

from billing.models.payments import MAX_TOP_UP_CENTS, MIN_TOP_UP_CENTS
from billing.models.payouts import MAX_MINIMUM_CENTS, MAX_PAYOUT_CENTS
from billing.papers.profiles import LIMITS
from billing.papers.tax_ids import countries
from marketplace.accounts.models import User
from marketplace.catalog.models import MAX_SOURCES
from marketplace.catalog.services import DeclaredSource
from protocol.proofs.documents import MAX_DOCUMENT_BYTES

NANO_PER_USD = 10**9


class PlainForm(forms.Form):
    """Marks faulty fields for assistive technology, and leaves the colon off labels."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("label_suffix", "")
        super().__init__(*args, **kwargs)


class ReceiptForm(PlainForm):
    """A receipt file to check."""

    file = forms.FileField(label="Receipt file", help_text="A file of the page of a prediction, or of the API.")

    def clean_file(self) -> bytes:
        """Return the file's bytes; a file larger than any receipt is refused unread."""
        found = self.cleaned_data["file"]
        if found.size > MAX_DOCUMENT_BYTES:
            raise forms.ValidationError(f"A receipt has at most {MAX_DOCUMENT_BYTES // 1024} KiB.")
        data: bytes = found.read()
        return data


class PasswordForm(PlainForm):
    """A deletion, confirmed with the password of the person who asks."""

    password = forms.CharField(
        label="Your password", widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}), max_length=128
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._user = user

    def clean_password(self) -> str:
        """Refuse another password than the person's."""
        password: str = self.cleaned_data["password"]
        if not self._user.check_password(password):
            raise forms.ValidationError("This is not your password.")
        return password


class DeleteOrganizationForm(PasswordForm):
    """The deletion of an organization, confirmed with its name, too."""

    name = forms.CharField(label="Name of the organization", max_length=40)
    give_up = forms.BooleanField(label="Give up the balance that is left", required=False)
    field_order = ("name", "give_up", "password")

    def __init__(self, *args: Any, slug: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._slug = slug
        self.fields["name"].help_text = f"Type {slug}."

    def clean_name(self) -> str:
        """Refuse another name than the organization's."""
        name: str = self.cleaned_data["name"]
        if name != self._slug:
            raise forms.ValidationError("This is not the organization's name.")
        return name


class TopUpForm(PlainForm):
    """Dollars to add to the wallet."""

    FIELD_NAMES: ClassVar = {"amount_cents": "amount"}  # argument of `start_top_up` → field

    amount = forms.DecimalField(
        label="Amount in dollars",
        min_value=Decimal(MIN_TOP_UP_CENTS) / 100,
        max_value=Decimal(MAX_TOP_UP_CENTS) / 100,
        decimal_places=2,
        initial=Decimal("25.00"),
    )

    @property
    def amount_cents(self) -> int:
        return int(self.cleaned_data["amount"] * 100)


class PayoutForm(PlainForm):
    """Dollars to pay out; empty for everything that is payable."""

    FIELD_NAMES: ClassVar = {"amount_cents": "amount"}  # argument of `start_payout` → field

    amount = forms.DecimalField(
        label="Amount in dollars",
        required=False,
        min_value=Decimal("0.01"),
        max_value=Decimal(MAX_PAYOUT_CENTS) / 100,
        decimal_places=2,
        help_text="Leave it empty to pay out everything that is payable.",
    )

    @property
    def amount_cents(self) -> int | None:
        amount: Decimal | None = self.cleaned_data["amount"]
        return None if amount is None else int(amount * 100)


class PayoutTermsForm(PlainForm):
    """When payouts leave by themselves, and the least that one carries."""

    FIELD_NAMES: ClassVar = {"minimum_cents": "minimum"}  # argument of `set_terms` → field

    schedule = forms.ChoiceField(
        label="Pay out",
        choices=[("monthly", "On the first of the month"), ("weekly", "On Mondays"), ("manual", "Only when I ask")],
    )
    minimum = forms.DecimalField(
        label="Once there are at least, in dollars",
        min_value=Decimal("0.01"),
        max_value=Decimal(MAX_MINIMUM_CENTS) / 100,
        decimal_places=2,
    )

    @property
    def minimum_cents(self) -> int:
        return int(self.cleaned_data["minimum"] * 100)


class CalculatorForm(PlainForm):
    """One prediction's size, and how many a month."""

    prompt_tokens = forms.IntegerField(label="Prompt tokens", min_value=0, max_value=10**6, initial=120)
    answer_tokens = forms.IntegerField(label="Answer tokens", min_value=0, max_value=10**6, initial=24)
    predictions = forms.IntegerField(label="Predictions a month", min_value=1, max_value=10**9, initial=10_000)
    cached_percent = forms.IntegerField(label="Prompt cached, %", min_value=0, max_value=100, initial=0, required=False)
    latency_class = forms.ChoiceField(
        label="Answered",
        choices=[("standard", "as usual"), ("interactive", "first"), ("batch", "later")],
        initial="standard",
        required=False,
    )


class PromiseForm(PlainForm):
    """The share of valid answers that a creator promises; empty ends the promise."""

    percent = forms.DecimalField(
        label="Valid answers, %",
        required=False,
        min_value=Decimal(50),
        max_value=Decimal("99.9"),
        decimal_places=2,
        help_text="Of the calls of each month, from the next one on. Empty: nothing is promised.",
    )

    @property
    def bound(self) -> int | None:
        """Return the promise in basis points."""
        percent = self.cleaned_data["percent"]
        return None if percent is None else int(percent * 100)


class RoyaltyForm(PlainForm):
    """The royalty of derived models, and the models that this one is derived from or blended of (said once)."""

    FIELD_NAMES: ClassVar = {"derivative_royalty_bps": "royalty_percent", "derived_from": "derived_from"}

    royalty_percent = forms.DecimalField(
        label="Derived models owe, %",
        required=False,
        min_value=Decimal(0),
        max_value=Decimal(100),
        decimal_places=2,
        help_text="Of what they earn. Empty: others may not derive a model from this one.",
    )
    derived_from = forms.CharField(
        label="Derived from",
        required=False,
        max_length=MAX_SOURCES * 83,
        help_text=(
            f"organization/model, or up to {MAX_SOURCES} of them with commas for a blend. "
            "It stands once saved, at the royalties which they ask now."
        ),
    )

    def __init__(self, *args: Any, declared: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if declared:
            del self.fields["derived_from"]

    @property
    def sources(self) -> list[DeclaredSource]:
        """Return the models named, which get the royalties that they ask."""
        names = self.cleaned_data.get("derived_from", "").split(",")
        return [DeclaredSource(name.strip()) for name in names if name.strip()]

    @property
    def royalty_bps(self) -> int | None:
        percent: Decimal | None = self.cleaned_data["royalty_percent"]
        return None if percent is None else int(percent * 100)


class BillingProfileForm(PlainForm):
    """The legal person on an organization's papers; `billing.papers.profiles` judges what is written."""

    legal_name = forms.CharField(label="Legal name", max_length=LIMITS["legal_name"])
    line1 = forms.CharField(label="Street and number", max_length=LIMITS["line1"])
    line2 = forms.CharField(label="Addition", max_length=LIMITS["line2"], required=False)
    postal_code = forms.CharField(label="Postal code", max_length=LIMITS["postal_code"], required=False)
    city = forms.CharField(label="City", max_length=LIMITS["city"])
    region = forms.CharField(label="State or region", max_length=LIMITS["region"], required=False)
    country = forms.ChoiceField(label="Country")
    tax_id = forms.CharField(
        label="Tax id",
        max_length=40,
        required=False,
        help_text="A VAT, GST or employer number, such as DE123456789.",
    )
    email = forms.EmailField(label="E-mail of accounting", max_length=LIMITS["email"], required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        named = sorted(countries().items(), key=lambda item: item[1])
        self.fields["country"].choices = [("", "Choose a country"), *named]  # type: ignore[attr-defined]


class RevokeForm(PlainForm):
    """Why a version is revoked; kept with the version."""

    reason = forms.CharField(label="Reason", max_length=500)
