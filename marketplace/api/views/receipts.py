"""Receipts that verify offline; the keys, roots and proofs that anyone may read."""

from __future__ import annotations

from datetime import date
from typing import ClassVar
from uuid import UUID

import msgspec
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiTypes, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.views.base import ControlView
from marketplace.receipts import selectors
from marketplace.receipts.keys import published_keys


class ReceiptView(ControlView):
    """The receipt of one prediction."""

    scopes: ClassVar = {"GET": ("account", "predict", "publish", "read")}

    @extend_schema(operation_id="get_receipt", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, prediction_id: UUID) -> HttpResponse:
        """The signed receipt of a prediction that the organization paid for: a file for `intarsia receipt verify`."""
        document = selectors.receipt_document(self.organization, prediction_id)
        return HttpResponse(document, content_type="application/json")


class ReceiptKeysView(ControlView):
    """The keys that sign receipts."""

    public: ClassVar = frozenset({"GET"})

    @extend_schema(operation_id="get_receipt_keys", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> HttpResponse:
        """Every key that ever signed receipts, with its time; the same as /.well-known/intarsia-keys.json."""
        return HttpResponse(msgspec.json.encode(published_keys()), content_type="application/json")


class ReceiptDaysView(ControlView):
    """The published roots."""

    public: ClassVar = frozenset({"GET"})

    class DaysQuery(serializers.Serializer):
        after = serializers.IntegerField(
            min_value=0, max_value=2**62, default=0, help_text="number of the last head read"
        )

    class Days(serializers.Serializer):
        class PublishedHead(serializers.Serializer):
            sequence = serializers.IntegerField()
            day = serializers.DateField()
            size = serializers.IntegerField(help_text="receipts in the tree")
            published_at = serializers.DateTimeField()
            statement = serializers.CharField(help_text="the signed head (JWS)")

        results = PublishedHead(many=True)
        next_after = serializers.IntegerField(allow_null=True, help_text="null: there are no more heads now")

    @extend_schema(operation_id="list_receipt_days", parameters=[DaysQuery], responses=Days, filters=False)
    def get(self, request: Request) -> Response:
        """The signed roots of the daily trees, in the order of publication."""
        found = selectors.heads(after=self.parse(self.DaysQuery, query=True)["after"])
        following = found[-1].sequence if len(found) == selectors.MAX_HEADS else None
        return Response(self.show(self.Days, {"results": found, "next_after": following}))


class ReceiptConsistencyView(ControlView):
    """Proofs that a day's tree only grew."""

    public: ClassVar = frozenset({"GET"})

    class Sizes(serializers.Serializer):
        first = serializers.IntegerField(min_value=1, max_value=2**62)
        second = serializers.IntegerField(min_value=1, max_value=2**62)

    class Consistency(serializers.Serializer):
        path = serializers.ListField(child=serializers.CharField(), help_text="hashes in base64url (RFC 6962)")

    @extend_schema(operation_id="get_receipt_consistency", parameters=[Sizes], responses=Consistency, filters=False)
    def get(self, request: Request, day: date) -> Response:
        """The proof that the day's tree of `first` receipts is the beginning of that of `second`, both published."""
        sizes = self.parse(self.Sizes, query=True)
        path = selectors.consistency(day, sizes["first"], sizes["second"])
        return Response(self.show(self.Consistency, {"path": path}))
