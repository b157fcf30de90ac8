"""Shapes of reviews. Comments, not docstrings: a serializer's docstring becomes part of the public schema."""

from __future__ import annotations

from rest_framework import serializers

from marketplace.catalog.models import Model, Version
from marketplace.publishing import selectors
from marketplace.publishing.models import Review
from marketplace.publishing.policies import sentences


class Sentences(serializers.ListField):
    """The reasons of a review, a sentence each."""

    child = serializers.CharField()

    def to_representation(self, value: Review) -> list[str]:
        """Return what the policies say."""
        return sentences(value)


class OwnReview(serializers.Serializer):  # what the creator sees of a Review
    id = serializers.UUIDField()
    kind = serializers.CharField(help_text="version, listing (a change that waits) or reports (by customers)")
    state = serializers.CharField(help_text="open, approved, refused or withdrawn")
    version = serializers.IntegerField(source="version.number", allow_null=True, default=None)
    reasons = Sentences(source="*", help_text="why a person must look, a sentence each")
    change = serializers.DictField(help_text="the fields of the listing that wait")
    opened_at = serializers.DateTimeField()
    due_at = serializers.DateTimeField(help_text="answered by then: one working day")
    decision = serializers.CharField(help_text="the reason given for a refusal")
    decided_at = serializers.DateTimeField(allow_null=True)
    appealed_at = serializers.DateTimeField(allow_null=True, help_text="a refusal may be appealed once")


class VersionReview(OwnReview):  # the last review of a Version
    def get_attribute(self, instance: Version) -> Review | None:
        """Return the review, or None."""
        return selectors.review_of(instance)


class ListingReview(OwnReview):  # in which a change of a Model waits
    def get_attribute(self, instance: Model) -> Review | None:
        """Return the review from the context."""
        review: Review | None = self.context["review"]
        return review


class ListingDigest(serializers.CharField):
    """The digest of the listing's words as they are now."""

    def to_representation(self, value: Review) -> str:
        """Return 16 hex digits."""
        return selectors.listing_digest(value.model)


class QueuedReview(OwnReview):  # what staff see of a Review
    model = serializers.CharField(source="model.full_name")
    title = serializers.CharField(source="model.title")
    summary = serializers.CharField(source="model.summary")
    card_markdown = serializers.CharField(source="model.card_markdown")
    listing_digest = ListingDigest(source="*", help_text="of title, summary, card and visibility; an approval names it")
    report = serializers.DictField(source="version.report", allow_null=True, default=None)
    appeal = serializers.CharField(help_text="the creator's words")
