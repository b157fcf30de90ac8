"""Reviews: what a creator sees and appeals, what a customer reports, and the queue of the platform's staff."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.models import User
from marketplace.api.errors import not_found
from marketplace.api.review_shapes import OwnReview, QueuedReview
from marketplace.api.views.base import ControlView
from marketplace.catalog import selectors as catalog
from marketplace.publishing import selectors
from marketplace.publishing import services as publishing
from marketplace.publishing.models import MAX_TEXT, Report, Review


class ReviewsView(ControlView):
    """The reviews of one model."""

    scopes: ClassVar = {"GET": ("publish", "read")}

    @extend_schema(operation_id="list_reviews", responses=OwnReview(many=True))
    def get(self, request: Request, org: str, slug: str) -> Response:
        """List the reviews of a model of one's own, the last first: state, reasons, decision."""
        reviews = selectors.reviews_of(model=self.owned_model(org, slug))
        return self.page(reviews, OwnReview, ordering=("-opened_at",))


class AppealView(ControlView):
    """A creator's appeal."""

    scopes: ClassVar = {"POST": ("publish",)}

    class Appeal(serializers.Serializer):
        text = serializers.CharField(max_length=MAX_TEXT, help_text="why the refusal is wrong")

    @extend_schema(operation_id="appeal_review", request=Appeal, responses=OwnReview)
    def post(self, request: Request, review_id: UUID) -> Response:
        """Appeal a refusal, once. A person answers within one working day."""
        review = selectors.own_review(organization=self.organization, review_id=review_id)
        if review is None:
            raise not_found("review")
        wanted = self.parse(self.Appeal)
        publishing.appeal_review(review=review, text=wanted["text"], by=self.person)
        return Response(self.show(OwnReview, review))


class ReportsView(ControlView):
    """Reports of a model."""

    scopes: ClassVar = {"POST": ("predict", "publish", "account")}

    class ReportModel(serializers.Serializer):
        reason = serializers.ChoiceField(Report.Reason.choices)
        text = serializers.CharField(max_length=MAX_TEXT, allow_blank=True, required=False, default="")

    class Reported(serializers.Serializer):
        reason = serializers.CharField()
        created_at = serializers.DateTimeField()

    @extend_schema(operation_id="report_model", request=ReportModel, responses={201: Reported})
    def post(self, request: Request, org: str, slug: str) -> Response:
        """Report a model, once for each organization. Three reports by customers bring it before a person."""
        model = catalog.visible_model(org_slug=org, slug=slug, viewer=self.organization)
        if model is None:
            raise not_found("model")
        wanted = self.parse(self.ReportModel)
        report = publishing.report_model(
            model=model,
            organization=self.organization,
            reason=wanted["reason"],
            text=wanted["text"],
            by=self.person,
        )
        return Response(self.show(self.Reported, report), status=201)


class QueueView(ControlView):
    """The queue of reviews."""

    staff_only = True

    @extend_schema(operation_id="list_queued_reviews", responses=QueuedReview(many=True))
    def get(self, request: Request) -> Response:
        """The open reviews, the least time left first. Platform staff only."""
        return self.page(selectors.queue(), QueuedReview, ordering=("due_at", "id"))


class StaffReviewView(ControlView):
    """Base of what staff do about one review."""

    staff_only = True

    def review(self, review_id: UUID) -> Review:
        """Return the review; any other id is not found."""
        review = selectors.review_by_id(review_id)
        if review is None:
            raise not_found("review")
        return review

    @property
    def user(self) -> User:
        """Return the member of staff."""
        assert self.caller.user is not None  # staff_only
        return self.caller.user


class ApproveReviewView(StaffReviewView):
    """An approval."""

    class Approve(serializers.Serializer):
        listing_digest = serializers.CharField(max_length=16, help_text="of the listing as it was read, from the queue")

    @extend_schema(operation_id="approve_review", request=Approve, responses=QueuedReview)
    def post(self, request: Request, review_id: UUID) -> Response:
        """Let it become public. 409 `listing_changed` if its words are not those that were read. Platform staff."""
        review = self.review(review_id)
        seen = self.parse(self.Approve)["listing_digest"]
        publishing.approve_review(review=review, user=self.user, seen=seen)
        return Response(self.show(QueuedReview, self.review(review_id)))


class RefuseReviewView(StaffReviewView):
    """A refusal."""

    class Refuse(serializers.Serializer):
        reason = serializers.CharField(max_length=MAX_TEXT, help_text="which the creator reads")
        strike = serializers.BooleanField(required=False, default=False, help_text="count it against the organization")

    @extend_schema(operation_id="refuse_review", request=Refuse, responses=QueuedReview)
    def post(self, request: Request, review_id: UUID) -> Response:
        """Keep it from the public, for a reason; what customers reported goes off sale. Platform staff only."""
        wanted = self.parse(self.Refuse)
        publishing.refuse_review(
            review=self.review(review_id), user=self.user, reason=wanted["reason"], strike=wanted["strike"]
        )
        return Response(self.show(QueuedReview, self.review(review_id)))


class PullReviewView(StaffReviewView):
    """A reported model goes off sale before the decision."""

    class Pull(serializers.Serializer):
        reason = serializers.CharField(max_length=MAX_TEXT, help_text="which the creator reads")

    @extend_schema(operation_id="pull_review", request=Pull, responses=QueuedReview)
    def post(self, request: Request, review_id: UUID) -> Response:
        """Take a reported model off sale while it waits for the decision. Platform staff only."""
        reason = self.parse(self.Pull)["reason"]
        publishing.pull_from_sale(review=self.review(review_id), user=self.user, reason=reason)
        return Response(self.show(QueuedReview, self.review(review_id)))
