"""Shapes that several operations share. Each reads its row by `source`, so no function copies rows into dicts.

Comments, not docstrings: a serializer's docstring becomes part of the public schema.
"""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.reverse import reverse

from marketplace.api.fields import Base64UrlField
from marketplace.api.key_shapes import GuardsField
from marketplace.api.review_shapes import ListingReview, VersionReview
from marketplace.catalog import copying
from marketplace.catalog.call_price import cost_of_copy
from marketplace.catalog.intervals import wilson
from marketplace.catalog.models import Evaluation, Model, Price, Version
from marketplace.catalog.selectors import logo_url
from marketplace.catalog.services.listings import MAX_EXAMPLE_LENGTH
from marketplace.publishing import services as publishing
from marketplace.standing.public import PublicStanding, public_standing
from sealed_weights.wrap import fingerprint


class Organizations(serializers.Serializer):  # shows a Membership
    id = serializers.UUIDField(source="organization_id")
    slug = serializers.CharField(source="organization.slug")
    name = serializers.CharField(source="organization.name")
    role = serializers.CharField(allow_null=True)


class CreatorSigningKey(serializers.Serializer):
    id = serializers.UUIDField()
    public_key = Base64UrlField()
    created_at = serializers.DateTimeField()
    revoked_at = serializers.DateTimeField(allow_null=True)


class Base(serializers.Serializer):
    name = serializers.CharField()
    fingerprint = serializers.CharField()
    context_length = serializers.IntegerField()


class BaseWithConfig(Base):
    line = serializers.CharField(source="line.name", help_text="the base line that it is the reference of")
    precision = serializers.CharField(help_text="in words, or empty")
    config = serializers.DictField()


class ModelPrice(serializers.Serializer):
    version = serializers.IntegerField(
        source="version.number", allow_null=True, help_text="null: every version without a price of its own"
    )
    input_micro_usd_per_mtok = serializers.IntegerField()
    cached_input_micro_usd_per_mtok = serializers.IntegerField()
    output_micro_usd_per_mtok = serializers.IntegerField()
    embedding_micro_usd_per_mtok = serializers.IntegerField(allow_null=True, help_text="null: no embeddings are sold")
    per_prediction_nano_usd = serializers.IntegerField()
    interactive_bps = serializers.IntegerField(help_text="multiplier of `service_tier: priority`; 10000 is 1 ×")
    batch_bps = serializers.IntegerField(help_text="multiplier of `service_tier: flex`; 10000 is 1 ×")
    monthly_free_nano_usd = serializers.IntegerField(help_text="free for each consumer in each calendar month (UTC)")
    intro_free_nano_usd = serializers.IntegerField(help_text="free for each consumer, once")
    effective_at = serializers.DateTimeField()
    created_at = serializers.DateTimeField()


class Scorer(serializers.Serializer):  # `protocol.eval_rows.Scorer`
    kind = serializers.ChoiceField(["json", "fields", "label", "regex", "number"])
    field = serializers.CharField(max_length=100, required=False)
    fields = serializers.ListField(child=serializers.CharField(max_length=100), max_length=16, required=False)
    tolerance = serializers.FloatField(min_value=0, max_value=1e9, required=False)


class Interval(serializers.FloatField):
    """One end of a Wilson interval of an Evaluation, as a share: 0 or 1 of (low, high), of the version or the base."""

    def __init__(self, end: int, column: str) -> None:
        super().__init__(source="*", read_only=True, help_text="95 %, by Wilson's score")
        self._end, self._column = end, column

    def to_representation(self, value: Evaluation) -> float:
        """Compute it."""
        return round(wilson(getattr(value, self._column), value.rows)[self._end], 6)


class CopyCost(serializers.Serializer):
    calls = serializers.IntegerField(help_text="answers that are enough for a copy of a narrow model")
    nano_usd = serializers.IntegerField(help_text="what they cost by the cheapest tier, after what is free")
    predictions = serializers.IntegerField(
        allow_null=True, help_text="of how many a call's cost is the median; null: the most that it can cost"
    )

    def get_attribute(self, instance: Price) -> copying.CopyCost | None:
        """Return what a copy costs at this price, for the typical call of the context."""
        return cost_of_copy(instance, self.context["call"])


class PriceOfModel(ModelPrice):
    copy = CopyCost(allow_null=True, help_text="what a copy made from answers costs; null: no call can be priced yet")


class ModelEvaluation(serializers.Serializer):  # shows an Evaluation
    run_id = serializers.UUIDField(help_text="evaluations/{run_id}/calls lists its receipts")
    version = serializers.IntegerField(source="version.number")
    set = serializers.IntegerField(source="set_number")
    set_digest = serializers.CharField(help_text="of the sealed rows")
    scorer = Scorer()
    rows = serializers.IntegerField()
    correct = serializers.IntegerField()
    low, high = Interval(0, "correct"), Interval(1, "correct")
    base_correct = serializers.IntegerField()
    base_low, base_high = Interval(0, "base_correct"), Interval(1, "base_correct")
    macro_f1_bps = serializers.IntegerField(allow_null=True, help_text="of labels; 10000 is 1")
    base_macro_f1_bps = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()


class Example(serializers.Serializer):  # the same going in and coming out
    role = serializers.ChoiceField(["system", "user", "assistant"])
    content = serializers.CharField(max_length=MAX_EXAMPLE_LENGTH, trim_whitespace=False)


class ModelSource(serializers.Serializer):
    model = serializers.CharField(source="upstream.full_name")
    royalty_bps = serializers.IntegerField(help_text="basis points of the earnings that go to this model's creator")


class ModelStanding(serializers.Serializer):  # the place of a Model in the catalogue, and what it stands on
    place = serializers.IntegerField(allow_null=True, help_text="1 is the first; null: published a moment ago")
    quality_low = serializers.FloatField(allow_null=True, help_text="lower 95 % bound of the measured accuracy")
    quality_rows = serializers.IntegerField(allow_null=True)
    uptime = serializers.FloatField(allow_null=True, help_text="answered calls of four weeks; null: too few calls")
    payers_at_least = serializers.IntegerField(help_text="paying cards; 0: fewer than 5")
    weeks_at_least = serializers.IntegerField(help_text="weeks in which they paid; 0 with fewer than 5 cards")

    def get_attribute(self, instance: Model) -> PublicStanding | None:
        """Return what everybody may see."""
        return public_standing(instance)


class ListingLicence(serializers.Serializer):  # of a Model
    id = serializers.CharField(source="licence", help_text="as SPDX or its publisher names it; own: the creator's text")
    required = serializers.BooleanField(source="licence_required", help_text="accepted before the first call")
    digest = serializers.CharField(source="terms_digest", help_text="SHA-256 of what an acceptance accepts")


class LogoUrl(serializers.CharField):
    """The address of a Model's logo."""

    def to_representation(self, value: Model) -> str | None:
        """Return the absolute address; None without a logo."""
        return logo_url(value)


class Listing(serializers.Serializer):  # shows a Model as `catalog.selectors.listed` loads it
    id = serializers.UUIDField()
    name = serializers.CharField(source="full_name", help_text="org/slug: what `model` is in a request to /v1")
    organization = serializers.CharField(source="organization.slug")
    organization_id = serializers.UUIDField()
    slug = serializers.CharField()
    kind = serializers.CharField()
    base = Base(source="base_model")
    title = serializers.CharField()
    summary = serializers.CharField()
    industry = serializers.CharField()
    tags = serializers.ListField(child=serializers.CharField())
    visibility = serializers.CharField()
    licence = ListingLicence(source="*")
    gated = serializers.BooleanField(help_text="each organization asks its creator for access before its first call")
    logo_url = LogoUrl(source="*", allow_null=True, help_text="null: the model has no picture of its own")
    price = ModelPrice(source="facts.price", allow_null=True)
    derived_from = ModelSource(
        source="sources", many=True, help_text="the model that this one is derived from, or those blended in it"
    )
    derivative_royalty_bps = serializers.IntegerField(
        allow_null=True, help_text="what models derived from this one owe; null: none may be declared"
    )
    guards = GuardsField(help_text="what the model does about personal data in requests; a key's own policy adds to it")
    newest_version = serializers.IntegerField(
        source="facts.newest.number",
        allow_null=True,
        help_text="the default: what a name without a number means; the newest on sale, unless another was chosen",
    )
    evaluation = ModelEvaluation(source="facts.evaluation", allow_null=True)
    standing = ModelStanding(allow_null=True, help_text="null: the model is not in the public catalogue")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class ModelPage(Listing):
    card_markdown = serializers.CharField()
    example_messages = Example(many=True)
    licence_text = serializers.CharField(help_text="of the licence own; empty for all others")


class ChangedModel(ModelPage):
    review = ListingReview(allow_null=True, help_text="in which a part of the change waits for a person; null: none")


class ContractField(serializers.Serializer):
    """How a version wants to be called: `protocol.contracts.PublicContract`."""

    instruction_tokens = serializers.IntegerField(help_text="Tokens that every prompt begins with")
    max_tokens = serializers.IntegerField(help_text="Of an answer, where the request names no limit")
    output_schema = serializers.DictField(allow_null=True, help_text="JSON schema of every answer; null: free text")
    messages = serializers.ChoiceField(["single", "chat"])
    system = serializers.ChoiceField(["replace", "append", "refuse"], help_text="A caller's own system text")
    logprobs = serializers.ChoiceField(["none", "confidence", "open"])


class PublicVersion(serializers.Serializer):
    # Everybody may read this of a version that is or was on sale; its `report` names tensors and shapes, so only its
    # creator may read that.
    id = serializers.UUIDField()
    model = serializers.CharField(source="model.full_name")
    model_id = serializers.UUIDField()
    number = serializers.IntegerField()
    state = serializers.CharField()
    changelog = serializers.CharField()
    package_digest = serializers.CharField(allow_null=True)
    package_size = serializers.IntegerField()
    base_fingerprint = serializers.CharField(source="model.base_model.fingerprint")
    contract = ContractField(allow_null=True)
    created_at = serializers.DateTimeField()
    published_at = serializers.DateTimeField(allow_null=True)
    deprecated_at = serializers.DateTimeField(allow_null=True, help_text="when its end was announced; null: it was not")
    ends_at = serializers.DateTimeField(allow_null=True, help_text="from then on calls to it are refused")
    replacement = serializers.IntegerField(
        source="replacement.number", allow_null=True, default=None, help_text="the version to call instead"
    )


class UploadedBytes(serializers.IntegerField):
    """Bytes of a Version's package that have arrived."""

    def to_representation(self, value: Version) -> int:
        """Ask the package store."""
        return publishing.upload_offset(version=value)


class OwnVersion(PublicVersion):
    review = VersionReview(allow_null=True, help_text="the last time that a person was asked about it; null: never")
    creator_id = serializers.UUIDField(source="model.organization_id")
    uploaded_bytes = UploadedBytes(source="*")
    report = serializers.DictField(help_text="What verification measured, or `refusal: {field, rule, message}`")
    state_changed_at = serializers.DateTimeField()


class KeyFingerprint(serializers.CharField):
    """The fingerprint of a public key, from the key's bytes."""

    def to_representation(self, value: bytes) -> str:
        """Return 64 hex digits."""
        return fingerprint(value)


class IntakeKey(serializers.Serializer):  # shows the bytes of the key
    public_key = Base64UrlField(source="*", help_text="HPKE MLKEM768-X25519; data keys are wrapped to it")
    fingerprint = KeyFingerprint(source="*", help_text="64 hex digits; clients pin it")

    def get_attribute(self, instance: Any) -> Any:
        """Return the key from the context: asked for only inside another shape."""
        return self.context["intake_key"]


class UploadUrl(serializers.CharField):
    """The address that takes a Version's package."""

    def to_representation(self, value: Version) -> str:
        """Return the absolute address."""
        url: str = reverse("api:package", kwargs={"version_id": value.id}, request=self.context["request"])
        return url


class StartedVersion(OwnVersion):
    base_config = serializers.DictField(source="model.base_model.config")
    intake_key = IntakeKey()
    upload_url = UploadUrl(source="*")


class TopUpStatus(serializers.Serializer):
    id = serializers.UUIDField()
    amount_cents = serializers.IntegerField()
    state = serializers.CharField(help_text="created, pending, credited, expired or failed; only credited moved money")
    checkout_url = serializers.CharField(help_text="the payment page; empty while a saved card is charged")
    card_id = serializers.UUIDField(allow_null=True, help_text="the saved card of an automatic top-up")
    failure = serializers.CharField(help_text="the bank's reason, or empty")
    created_at = serializers.DateTimeField()
    credited_at = serializers.DateTimeField(allow_null=True)
