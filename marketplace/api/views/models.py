"""The catalogue: listings and their prices."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import transaction
from django.db.models import F
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.pricing import BASIS_POINTS
from marketplace.accounts.errors import Refusal
from marketplace.api.errors import not_found
from marketplace.api.fields import SlugField
from marketplace.api.listing_shapes import CatalogueFilters, ListingFields, filters_of, listing_text
from marketplace.api.serializers import BaseWithConfig, ChangedModel, Listing, ModelPage, PriceOfModel
from marketplace.api.views.base import ControlView
from marketplace.catalog import selectors, services
from marketplace.catalog.call_price import call_to_copy
from marketplace.catalog.models import (
    MAX_CLASS_BPS,
    MAX_FREE_NANO_USD,
    MAX_PER_PREDICTION_NANO_USD,
    MAX_PRICE_MICRO_USD_PER_MTOK,
    MAX_SOURCES,
    MIN_CLASS_BPS,
    Model,
)
from marketplace.catalog.services import DeclaredSource
from marketplace.publishing import services as publishing
from marketplace.publishing.errors import RefusedByReview

DERIVED_FROM = "the model that this one is derived from, or those blended in it; declared once, all together"
ROYALTY = serializers.IntegerField(
    min_value=0,
    max_value=BASIS_POINTS,
    required=False,
    allow_null=True,
    help_text="basis points of their earnings that models derived from this one owe; null: none may be declared",
)


class SourceFields(serializers.Serializer):
    """A model that another one is derived from, or that was blended in it."""

    model = serializers.CharField(max_length=81, help_text="org/slug")
    royalty_bps = serializers.IntegerField(
        min_value=0,
        max_value=BASIS_POINTS,
        required=False,
        help_text="basis points of the earnings, at least what that model asks now; left out, what it asks",
    )


class ModelsView(ControlView):
    """Browse and create."""

    public = frozenset({"GET"})
    scopes: ClassVar = {"POST": ("publish",)}

    class BrowseModels(CatalogueFilters):
        q = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
        mine = serializers.BooleanField(required=False, default=False)
        order = serializers.ChoiceField(
            ("newest", "ranked"),
            required=False,
            default="newest",
            help_text="newest first, or by standing: measured quality and uptime, then demand (docs/ranking.md)",
        )

    class CreateModel(ListingFields):
        slug = SlugField()
        derived_from = SourceFields(many=True, required=False, max_length=MAX_SOURCES, help_text=DERIVED_FROM)
        derivative_royalty_bps = ROYALTY
        base = serializers.CharField(
            max_length=100, required=False, help_text="name or fingerprint; may be left out while there is one base"
        )

    @extend_schema(operation_id="list_models", parameters=[BrowseModels], responses=Listing(many=True), auth=[])
    def get(self, request: Request) -> Response:
        """The public catalogue, newest first or by standing; what `q` finds, best first; `mine=true`: one's own.

        Filters hold together; none of them applies to `mine`.
        """
        wanted = self.parse(self.BrowseModels, query=True)
        if wanted["mine"]:
            if self.caller.user is None and self.caller.key is None:
                raise Refusal(
                    "sign in, or send an API key, to see your own models", code="not_authenticated", status=401
                )
            found = selectors.models_of(organization=self.organization)
        else:
            found = selectors.published_models(query=wanted["q"], filters=filters_of(wanted))
            if wanted["q"].strip():
                return self.page(found, Listing, ordering=("place",))
            if wanted["order"] == "ranked":
                # A cursor needs its column by a name of the row.
                found = found.annotate(place=F("standing__place"))
                return self.page(found, Listing, ordering=("place", "standing__model_id"))
        return self.page(found, Listing)

    @extend_schema(operation_id="create_model", request=CreateModel, responses={201: ModelPage})
    def post(self, request: Request) -> Response:
        """Create a listing. It is seen by others once a version of it is published."""
        wanted = self.parse(self.CreateModel)
        with transaction.atomic():
            model = publishing.create_listing(
                organization=self.organization,
                slug=wanted["slug"],
                base_model=selectors.chosen_base(wanted.get("base")),
                text=listing_text(wanted),
                actor=self.actor,
            )
            _set_royalties(model, wanted)
        return Response(self.show(ModelPage, self.owned_model(self.organization.slug, model.slug)), status=201)


class ModelView(ControlView):
    """One listing."""

    public = frozenset({"GET"})
    scopes: ClassVar = {"PATCH": ("publish",)}

    class UpdateModel(ListingFields):
        title = serializers.CharField(max_length=120, required=False)
        updated_at = serializers.DateTimeField(
            required=False, help_text="as you read it: 409 listing_changed if the listing was changed since"
        )
        derived_from = SourceFields(many=True, required=False, max_length=MAX_SOURCES, help_text=DERIVED_FROM)
        derivative_royalty_bps = ROYALTY

    @extend_schema(operation_id="get_model", responses=ModelPage, auth=[])
    def get(self, request: Request, org: str, slug: str) -> Response:
        """A listing with its card. Drafts and private models exist for their own organization only."""
        model = selectors.visible_model(org_slug=org, slug=slug, viewer=self.caller.organization)
        if model is None:
            raise not_found("model")
        return Response(self.show(ModelPage, model))

    @extend_schema(operation_id="update_model", request=UpdateModel, responses=ChangedModel)
    def patch(self, request: Request, org: str, slug: str) -> Response:
        """Change what the listing says; fields left out stay.

        Title, summary, card, licence and visibility of a model for sale in public may have to wait for a person: they
        are then in `review.change`, and the rest holds at once.
        """
        model = self.owned_model(org, slug)
        wanted = self.parse(self.UpdateModel)
        review, refusal = None, None
        with transaction.atomic():
            try:
                review = publishing.change_listing(
                    model=model,
                    text=listing_text(wanted),
                    by=self.person,
                    actor=self.actor,
                    seen=wanted.get("updated_at"),
                )
            except RefusedByReview as error:
                refusal = error  # raised outside: the refusal itself is kept
            else:
                _set_royalties(model, wanted)
        if refusal is not None:
            raise refusal
        return Response(self.show(ChangedModel, self.owned_model(org, slug), review=review))


class PricesView(ControlView):
    """Prices are appended, never edited."""

    public = frozenset({"GET"})
    scopes: ClassVar = {"POST": ("publish",)}
    fresh = frozenset({"POST"})

    class SetPrice(serializers.Serializer):
        input_micro_usd_per_mtok = serializers.IntegerField(min_value=0, max_value=MAX_PRICE_MICRO_USD_PER_MTOK)
        cached_input_micro_usd_per_mtok = serializers.IntegerField(
            min_value=0, max_value=MAX_PRICE_MICRO_USD_PER_MTOK, required=False
        )
        output_micro_usd_per_mtok = serializers.IntegerField(min_value=0, max_value=MAX_PRICE_MICRO_USD_PER_MTOK)
        embedding_micro_usd_per_mtok = serializers.IntegerField(
            min_value=0, max_value=MAX_PRICE_MICRO_USD_PER_MTOK, allow_null=True, default=None
        )
        per_prediction_nano_usd = serializers.IntegerField(
            min_value=0, max_value=MAX_PER_PREDICTION_NANO_USD, default=0
        )
        interactive_bps = serializers.IntegerField(
            min_value=MIN_CLASS_BPS, max_value=MAX_CLASS_BPS, default=BASIS_POINTS
        )
        batch_bps = serializers.IntegerField(min_value=MIN_CLASS_BPS, max_value=MAX_CLASS_BPS, default=BASIS_POINTS)
        monthly_free_nano_usd = serializers.IntegerField(min_value=0, max_value=MAX_FREE_NANO_USD, default=0)
        intro_free_nano_usd = serializers.IntegerField(min_value=0, max_value=MAX_FREE_NANO_USD, default=0)
        version = serializers.IntegerField(
            min_value=1, max_value=2**31 - 1, required=False, allow_null=True, help_text="every version if left out"
        )
        effective_at = serializers.DateTimeField(
            required=False, allow_null=True, help_text="when the price begins; from the next prediction on if left out"
        )

    @extend_schema(operation_id="list_prices", responses=PriceOfModel(many=True), auth=[])
    def get(self, request: Request, org: str, slug: str) -> Response:
        """Every price that the model had, has or will have, the last to begin first."""
        model = selectors.visible_model(org_slug=org, slug=slug, viewer=self.caller.organization)
        if model is None:
            raise not_found("model")
        prices = selectors.prices_of(model=model)
        return self.page(prices, PriceOfModel, ordering=("-effective_at", "-id"), call=call_to_copy(model))

    @extend_schema(operation_id="set_price", request=SetPrice, responses={201: PriceOfModel})
    def post(self, request: Request, org: str, slug: str) -> Response:
        """Set the price from the next prediction on, or announce one. Micro-dollars per million tokens."""
        model, wanted = self.owned_model(org, slug), self.parse(self.SetPrice)
        version = None
        if (number := wanted.pop("version", None)) is not None:
            version = selectors.versions_of(model=model, published_only=False).filter(number=number).first()
            if version is None:
                raise not_found("version")
        price = services.set_price(model=model, version=version, **wanted)
        return Response(self.show(PriceOfModel, price, call=call_to_copy(model)), status=201)


class BasesView(ControlView):
    """Base models."""

    public = frozenset({"GET"})

    @extend_schema(operation_id="list_bases", responses=BaseWithConfig(many=True), auth=[])
    def get(self, request: Request) -> Response:
        """The base models that adapters may be made for, newest first."""
        return self.page(selectors.bases(), BaseWithConfig)


def _set_royalties(model: Model, wanted: dict[str, Any]) -> None:
    if wanted.get("derived_from"):
        sources = [DeclaredSource(one["model"], one.get("royalty_bps")) for one in wanted["derived_from"]]
        services.derive_from(model=model, sources=sources)
    if "derivative_royalty_bps" in wanted:
        services.offer_derivation(model=model, royalty_bps=wanted["derivative_royalty_bps"])
