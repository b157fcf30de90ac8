"""Models for sale (`org/slug`), their immutable versions and prices, and measured evaluations."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now, Upper

from billing import pricing
from billing.pricing import BASIS_POINTS
from marketplace.accounts.models import Organization, slug_validator
from marketplace.accounts.seals import SealedModel
from marketplace.catalog.checkpoints import BaseLine as BaseLine  # tables of this app, too
from marketplace.catalog.checkpoints import BaseModel as BaseModel
from marketplace.catalog.checkpoints import Clearance as Clearance
from marketplace.catalog.licences import MAX_LICENCE_TEXT, terms_digest
from marketplace.catalog.logos import Logo as Logo  # tables of this app, too
from marketplace.catalog.rollouts import Rollout as Rollout  # one of this app's tables, as the next
from marketplace.catalog.search_tables import Passage as Passage
from marketplace.catalog.search_tables import SearchText as SearchText
from marketplace.catalog.search_tables import Spelling as Spelling
from marketplace.catalog.standings import Standing as Standing

MAX_PRICE_MICRO_USD_PER_MTOK = 10**10  # $10,000 per million tokens
MAX_PER_PREDICTION_NANO_USD = 10**11  # $100
MAX_FREE_NANO_USD = 10**12  # $1,000 for each consumer
MIN_CLASS_BPS, MAX_CLASS_BPS = 100, 100_000  # a latency class costs 0.01 to 10 times as much as standard
MAX_SOURCES = 8  # models of which one is blended
_at_most_maximum = MaxValueValidator(MAX_PRICE_MICRO_USD_PER_MTOK)
_at_most_gift = MaxValueValidator(MAX_FREE_NANO_USD)
_at_most_everything = MaxValueValidator(BASIS_POINTS)
_multiplier = [MinValueValidator(MIN_CLASS_BPS), MaxValueValidator(MAX_CLASS_BPS)]


class Model(SealedModel):
    """A listing. `kind=base` sells the bare base model and has no package."""

    SEALED: ClassVar = ("id", "organization_id", "kind", "visibility")

    class Kind(models.TextChoices):
        ADAPTER = "adapter"
        BASE = "base"

    class Visibility(models.TextChoices):
        PUBLIC = "public"
        UNLISTED = "unlisted"
        PRIVATE = "private"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="models")
    slug = models.CharField(max_length=40, validators=[slug_validator])
    kind = models.CharField(max_length=8, choices=Kind, default=Kind.ADAPTER)
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="models")
    title = models.CharField(max_length=120)
    summary = models.CharField(max_length=280, blank=True)
    card_markdown = models.TextField(max_length=100_000, blank=True)
    industry = models.CharField(max_length=40, blank=True)
    tags = ArrayField(models.CharField(max_length=30), default=list, blank=True, size=10)
    visibility = models.CharField(max_length=8, choices=Visibility, default=Visibility.PUBLIC)
    example_messages = models.JSONField(default=list, blank=True)  # prefilled in the playground
    # The royalty of models derived from this one, of what they earn; null: nobody may declare it.
    derivative_royalty_bps = models.PositiveIntegerField(null=True, blank=True, validators=[_at_most_everything])
    # `marketplace.guards.policies`: kind → mask or refuse
    guards = models.JSONField(default=dict, db_default={}, blank=True)
    licence = models.CharField(max_length=40, default="", db_default="", blank=True)  # `catalog.licences`; empty: none
    licence_text = models.TextField(max_length=MAX_LICENCE_TEXT, default="", db_default="", blank=True)  # of `own`
    licence_required = models.BooleanField(default=False, db_default=False)  # accepted before the first call
    gated = models.BooleanField(default=False, db_default=False)  # the creator lets each customer in (access/)
    logo = models.CharField(max_length=64, default="", db_default="", blank=True)  # the digest of a `Logo`
    # The version that the creator chose for the bare name; null: the newest on sale (`catalog.rollouts`)
    default_version = models.ForeignKey(
        "catalog.Version", on_delete=models.SET_NULL, null=True, blank=True, related_name="+", db_index=False
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["organization", "slug"], name="model_unique_in_org"),
            models.CheckConstraint(
                condition=models.Q(derivative_royalty_bps__isnull=True)
                | models.Q(derivative_royalty_bps__lte=BASIS_POINTS),
                name="model_royalty_fits",
            ),
        ]
        # As the filter of the catalogue asks; without its statistics the planner takes an industry for a few models.
        indexes: ClassVar = [
            models.Index(Upper("industry"), name="catalog_model_industry"),
            models.Index(fields=["licence"], name="catalog_model_licence"),
            GinIndex(fastupdate=False, fields=["tags"], name="catalog_model_tags"),
        ]

    @property
    def full_name(self) -> str:
        """Return `org/slug`."""
        return f"{self.organization.slug}/{self.slug}"

    @property
    def terms_digest(self) -> str:
        """Return the digest of the licence as it is now, which an acceptance names."""
        return terms_digest(self.licence, self.licence_text)

    @property
    def facts(self) -> ModelFacts:
        """Return what the prefetches of `selectors.listed` hold, typed; only a model loaded by it has facts."""
        prices: list[Price] = getattr(self, "current_prices")  # noqa: B009  set by the prefetch, unknown to the model
        versions: list[Version] = getattr(self, "newest_versions")  # noqa: B009
        newest = versions[0] if versions else None
        evaluations: list[Evaluation] = getattr(newest, "newest_evaluations", [])
        by_version = {price.version_id: price for price in prices}
        price = (newest and by_version.get(newest.pk)) or by_version.get(None)
        return ModelFacts(price, newest, evaluations[0] if evaluations else None)


class Version(SealedModel):
    """An immutable sealed adapter. States move along `NEXT_STATES` only."""

    SEALED: ClassVar = ("id", "model_id", "number", "package_digest", "signing_key_id", "state")

    class State(models.TextChoices):
        UPLOADING = "uploading"
        VERIFYING = "verifying"
        VERIFIED = "verified"
        REFUSED = "refused"
        IN_REVIEW = "in_review"  # waits for a person before the public sees it; its own organization may call it
        PUBLISHED = "published"
        RETIRED = "retired"  # creator's choice: no new predictions
        REVOKED = "revoked"  # kill switch: replicas zero it within 5 s

    NEXT_STATES: ClassVar[dict[str, frozenset[str]]] = {
        State.UPLOADING: frozenset({State.VERIFYING, State.REFUSED}),
        State.VERIFYING: frozenset({State.VERIFIED, State.REFUSED}),
        State.VERIFIED: frozenset({State.IN_REVIEW, State.PUBLISHED, State.RETIRED, State.REVOKED}),
        State.IN_REVIEW: frozenset({State.PUBLISHED, State.VERIFIED, State.RETIRED, State.REVOKED}),
        State.PUBLISHED: frozenset({State.IN_REVIEW, State.RETIRED, State.REVOKED}),
        State.RETIRED: frozenset({State.REVOKED}),
        State.REFUSED: frozenset(),
        State.REVOKED: frozenset(),
    }

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    state = models.CharField(max_length=16, choices=State, default=State.UPLOADING)
    changelog = models.TextField(max_length=10_000, blank=True)
    signing_key = models.ForeignKey("vault.SigningKey", on_delete=models.PROTECT, null=True, related_name="versions")
    package_digest = models.CharField(max_length=64, null=True, unique=True)  # hex; null until complete, and for a base
    package_size = models.PositiveBigIntegerField(default=0)  # bytes of ciphertext announced at creation
    report = models.JSONField(default=dict, blank=True)  # what verification found, or the refusal
    contract = models.JSONField(
        null=True, blank=True
    )  # `protocol.contracts.PublicContract`; null: the package has none
    state_changed_at = models.DateTimeField(auto_now_add=True)
    published_at = models.DateTimeField(null=True, blank=True)
    # The announced end of the version: when that was said, when it comes, and the version to call instead.
    deprecated_at = models.DateTimeField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    replacement = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="+", db_index=False
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "number"], name="version_number_unique"),
            models.CheckConstraint(
                condition=models.Q(deprecated_at=None, ends_at=None)
                | models.Q(ends_at__gt=models.F("deprecated_at"), deprecated_at__isnull=False),
                name="version_end_after_notice",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["ends_at"], condition=models.Q(ends_at__isnull=False), name="version_ending"),
            models.Index(fields=["state_changed_at"], name="version_changed"),
        ]


class Price(models.Model):
    """The price of a version from `effective_at` on; `version` null is every version that has no price of its own.

    Rows never change and begin no earlier than they are written: triggers of migration 0003 refuse it. Rates are
    micro-dollars per million tokens = pico-dollars per token, of the class standard.
    """

    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="prices")
    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="prices", null=True, blank=True)
    input_micro_usd_per_mtok = models.PositiveBigIntegerField(validators=[_at_most_maximum])
    cached_input_micro_usd_per_mtok = models.PositiveBigIntegerField(validators=[_at_most_maximum])
    output_micro_usd_per_mtok = models.PositiveBigIntegerField(validators=[_at_most_maximum])
    # For the tokens of an embedding; null: the version sells no embeddings.
    embedding_micro_usd_per_mtok = models.PositiveBigIntegerField(null=True, blank=True, validators=[_at_most_maximum])
    per_prediction_nano_usd = models.PositiveBigIntegerField(
        default=0, validators=[MaxValueValidator(MAX_PER_PREDICTION_NANO_USD)]
    )
    # Multipliers of the other latency classes in basis points: 10,000 is the price of standard.
    interactive_bps = models.PositiveIntegerField(default=BASIS_POINTS, db_default=BASIS_POINTS, validators=_multiplier)
    batch_bps = models.PositiveIntegerField(default=BASIS_POINTS, db_default=BASIS_POINTS, validators=_multiplier)
    # Free for each consumer: so much per calendar month (UTC), and so much once.
    monthly_free_nano_usd = models.PositiveBigIntegerField(default=0, db_default=0, validators=[_at_most_gift])
    intro_free_nano_usd = models.PositiveBigIntegerField(default=0, db_default=0, validators=[_at_most_gift])
    effective_at = models.DateTimeField(db_default=Now())
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(cached_input_micro_usd_per_mtok__lte=models.F("input_micro_usd_per_mtok")),
                name="price_cached_input_not_dearer",
            ),
            models.CheckConstraint(
                condition=models.Q(
                    interactive_bps__range=(MIN_CLASS_BPS, MAX_CLASS_BPS),
                    batch_bps__range=(MIN_CLASS_BPS, MAX_CLASS_BPS),
                ),
                name="price_multipliers_in_range",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["model", "version", "-effective_at"], name="price_in_force")]

    def class_bps(self, latency_class: str) -> int:
        """Return the multiplier of a latency class: interactive, standard or batch."""
        return {"interactive": self.interactive_bps, "standard": BASIS_POINTS, "batch": self.batch_bps}[latency_class]

    def point(self, latency_class: str = "standard") -> pricing.Price:
        """Return the price of one latency class, as `billing.pricing` computes with it."""
        return pricing.Price(
            self.input_micro_usd_per_mtok,
            self.cached_input_micro_usd_per_mtok,
            self.output_micro_usd_per_mtok,
            self.per_prediction_nano_usd,
            self.class_bps(latency_class),
        )


class Source(models.Model):
    """A model that another one is derived from, or is blended of, and the royalty at which that was declared.

    All sources of a model are declared at once, each at its `place` of `count`, and stand: a trigger keeps them.
    """

    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="sources", db_index=False)
    upstream = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="derivatives")
    royalty_bps = models.PositiveIntegerField(validators=[_at_most_everything])  # of what `model` has itself
    place = models.PositiveSmallIntegerField()
    count = models.PositiveSmallIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "place"], name="source_place_unique"),
            models.UniqueConstraint(fields=["model", "upstream"], name="source_named_once"),
            models.CheckConstraint(
                condition=models.Q(
                    ~models.Q(model=models.F("upstream")),
                    royalty_bps__lte=BASIS_POINTS,
                    place__gte=1,
                    place__lte=models.F("count"),
                    count__lte=MAX_SOURCES,
                ),
                name="source_fits",
            ),
        ]


class Evaluation(models.Model):
    """An accuracy that the platform measured itself, on its own replicas, from sealed rows.

    Written at the end of a run (`marketplace.evals`) and nowhere else; `run_id` is that run, which lists the receipts.
    """

    version = models.ForeignKey(Version, on_delete=models.CASCADE, related_name="evaluations")
    run_id = models.UUIDField(unique=True)
    set_number = models.PositiveIntegerField()
    set_digest = models.CharField(max_length=64)
    scorer = models.JSONField()  # `protocol.eval_rows.Scorer`
    rows = models.PositiveIntegerField()
    correct = models.PositiveIntegerField()
    base_correct = models.PositiveIntegerField()
    # For labels, in hundredths of a percent; the base's beside it.
    macro_f1_bps = models.PositiveIntegerField(null=True)
    base_macro_f1_bps = models.PositiveIntegerField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(correct__lte=models.F("rows"), base_correct__lte=models.F("rows"), rows__gte=1),
                name="evaluation_within_rows",
            )
        ]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts that a listing shows beside the creator's own words. The price is None until the creator sets one."""

    price: Price | None  # the one in force of `newest`
    newest: Version | None  # the default version: what `org/slug` means
    evaluation: Evaluation | None  # the newest of `newest`
