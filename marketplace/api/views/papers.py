"""The caller's billing profile and papers: receipts, credit notes, invoices, statements of earnings."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import Paper
from billing.papers import issue
from billing.papers.download import download
from billing.papers.profiles import LIMITS, ProfileText, profile_of, save_profile
from marketplace.api.errors import not_found
from marketplace.api.views.base import ControlView
from marketplace.api.views.fleet import StaffView, WithCode
from marketplace.operations.platform_profile import platform_profile, write_platform_profile


class BillingProfileText(serializers.Serializer):
    legal_name = serializers.CharField(max_length=LIMITS["legal_name"])
    line1 = serializers.CharField(max_length=LIMITS["line1"], help_text="street and number")
    line2 = serializers.CharField(max_length=LIMITS["line2"], allow_blank=True, default="")
    postal_code = serializers.CharField(max_length=LIMITS["postal_code"], allow_blank=True, default="")
    city = serializers.CharField(max_length=LIMITS["city"])
    region = serializers.CharField(max_length=LIMITS["region"], allow_blank=True, default="")
    country = serializers.CharField(max_length=2, help_text="ISO 3166-1 alpha-2, such as DE")
    tax_id = serializers.CharField(max_length=40, allow_blank=True, default="", help_text="such as a VAT number")
    email = serializers.CharField(max_length=LIMITS["email"], allow_blank=True, default="")


class PlatformProfileText(BillingProfileText, WithCode):
    """The same fields, and a code."""


class BillingProfileView(ControlView):
    """The legal person behind the organization."""

    scopes: ClassVar = {"GET": ("account",), "PUT": ("account",)}

    @extend_schema(operation_id="get_billing_profile", responses=BillingProfileText)
    def get(self, request: Request) -> Response:
        """The organization's billing profile, as its next papers will name it; 404 before there is one."""
        profile = profile_of(self.organization)
        if profile is None:
            raise not_found("billing profile")
        return Response(self.show(BillingProfileText, profile))

    @extend_schema(operation_id="put_billing_profile", request=BillingProfileText, responses=BillingProfileText)
    def put(self, request: Request) -> Response:
        """Write the billing profile. Papers that were issued before stay as they are."""
        text = ProfileText(**self.parse(BillingProfileText))
        profile = save_profile(organization=self.organization, text=text, by=self.caller.user)
        return Response(self.show(BillingProfileText, profile))


class PlatformProfileView(StaffView):
    """The legal person behind the platform."""

    @extend_schema(operation_id="get_platform_billing_profile", responses=BillingProfileText)
    def get(self, request: Request) -> Response:
        """Whom papers name as the seller; 404 before it is written, and papers wait until then. Platform staff only."""
        profile = platform_profile()
        if profile is None:
            raise not_found("billing profile")
        return Response(self.show(BillingProfileText, profile))

    @extend_schema(
        operation_id="put_platform_billing_profile", request=PlatformProfileText, responses=BillingProfileText
    )
    def put(self, request: Request) -> Response:
        """Write whom papers name as the seller. Platform staff with a second factor only."""
        wanted = self.parse(PlatformProfileText)
        by = self.require_code(wanted.pop("code"))
        return Response(self.show(BillingProfileText, write_platform_profile(by=by, text=ProfileText(**wanted))))


class PaperSummary(serializers.Serializer):
    id = serializers.UUIDField()
    kind = serializers.ChoiceField(choices=Paper.Kind.choices)
    number = serializers.CharField(source="name", help_text="its number, such as INV-2026-000042")
    issued_at = serializers.DateTimeField()
    month = serializers.SerializerMethodField()
    total_nano_usd = serializers.IntegerField(help_text="tax included; negative on a credit note")
    tax_nano_usd = serializers.IntegerField()

    def get_month(self, paper: Paper) -> str | None:
        """Return the month of the paper."""
        return f"{paper.period:%Y-%m}" if paper.period else None


class PapersView(ControlView):
    """Papers of the organization."""

    scopes: ClassVar = {"GET": ("account",)}

    class PapersQuery(serializers.Serializer):
        kind = serializers.ChoiceField(choices=Paper.Kind.choices, required=False)

    @extend_schema(operation_id="list_papers", parameters=[PapersQuery], responses=PaperSummary(many=True))
    def get(self, request: Request) -> Response:
        """Receipts, credit notes, invoices and statements of earnings, newest first."""
        wanted = self.parse(self.PapersQuery, query=True)
        rows = Paper.objects.filter(organization=self.organization, **wanted).defer("content")
        return self.page(rows, PaperSummary, ordering=("-issued_at", "-id"))


class PaperFileView(ControlView):
    """One paper as a file."""

    scopes: ClassVar = {"GET": ("account",)}

    def found(self, paper_id: UUID) -> Paper:
        """Return the paper; one of another organization is not found."""
        paper = issue.paper_of(self.organization, paper_id)
        if paper is None:
            raise not_found("paper")
        return paper


class PaperPdfView(PaperFileView):
    """One paper as PDF."""

    @extend_schema(operation_id="get_paper_pdf", responses={(200, "application/pdf"): OpenApiTypes.BINARY})
    def get(self, request: Request, paper_id: UUID) -> HttpResponse:
        """The paper as PDF: the same bytes each time."""
        paper = self.found(paper_id)
        return download(issue.pdf_of(paper), f"{paper.name}.pdf")


class PaperCsvView(PaperFileView):
    """One paper as CSV."""

    @extend_schema(operation_id="get_paper_csv", responses={(200, "text/csv"): OpenApiTypes.STR})
    def get(self, request: Request, paper_id: UUID) -> HttpResponse:
        """The paper as CSV: the same text each time."""
        paper = self.found(paper_id)
        return download(issue.csv_of(paper), f"{paper.name}.csv")
