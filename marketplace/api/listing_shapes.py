"""Shapes of listings: a creator's words going in, and the filters of the catalogue."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from marketplace.api.serializers import Example
from marketplace.catalog.licences import CHOICES, MAX_LICENCE_TEXT
from marketplace.catalog.models import Model
from marketplace.catalog.search import Filters
from marketplace.catalog.services.listings import ExampleMessage, ListingText


class ListingFields(serializers.Serializer):
    """The words of a creator about a model."""

    title = serializers.CharField(max_length=120)
    summary = serializers.CharField(max_length=280, allow_blank=True, required=False)
    card_markdown = serializers.CharField(max_length=100_000, allow_blank=True, trim_whitespace=False, required=False)
    industry = serializers.CharField(max_length=40, allow_blank=True, required=False)
    tags = serializers.ListField(child=serializers.CharField(max_length=30), max_length=10, required=False)
    visibility = serializers.ChoiceField(Model.Visibility.values, required=False)
    example_messages = Example(many=True, required=False, max_length=8)
    licence = serializers.ChoiceField(
        [*CHOICES], required=False, allow_blank=True, help_text="empty: none is named; own: yours, in licence_text"
    )
    licence_text = serializers.CharField(
        max_length=MAX_LICENCE_TEXT, allow_blank=True, required=False, help_text="of the licence own alone"
    )
    licence_required = serializers.BooleanField(
        required=False, help_text="each organization accepts the licence before its first call"
    )
    gated = serializers.BooleanField(required=False, help_text="each organization asks you for access")


def listing_text(wanted: dict[str, Any]) -> ListingText:
    """Return the fields of a request that was parsed by ListingFields."""
    names = (name for name in ListingFields().fields if name != "example_messages")
    examples = wanted.get("example_messages")
    return ListingText(
        **{name: wanted[name] for name in names if name in wanted},
        example_messages=None if examples is None else [ExampleMessage(**example) for example in examples],
    )


class CatalogueFilters(serializers.Serializer):
    """The filters of the catalogue: the page takes the same ones. They hold together."""

    industry = serializers.CharField(max_length=40, required=False, default="", allow_blank=True)
    base = serializers.CharField(max_length=100, required=False, default="", allow_blank=True)
    tag = serializers.CharField(max_length=30, required=False, default="", allow_blank=True)
    licence = serializers.CharField(max_length=40, required=False, default="", allow_blank=True)
    max_output_micro_usd_per_mtok = serializers.IntegerField(
        min_value=0, max_value=2**62, required=False, help_text="of the price of a million answer tokens"
    )
    max_call_nano_usd = serializers.IntegerField(
        min_value=0, max_value=2**62, required=False, help_text="of a call of 500 tokens in and 100 out"
    )
    min_accuracy_bps = serializers.IntegerField(
        min_value=0, max_value=10_000, required=False, help_text="as the platform measured it on at least 50 rows"
    )
    max_ttft_ms = serializers.IntegerField(
        min_value=0, max_value=2**31 - 1, required=False, help_text="p95 of the first token, of the last four weeks"
    )


def filters_of(wanted: dict[str, Any]) -> Filters:
    """Return the filters of a query that was parsed by CatalogueFilters."""
    return Filters(**{name: wanted[name] for name in CatalogueFilters().fields if name in wanted})
