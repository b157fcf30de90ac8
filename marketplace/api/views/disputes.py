"""Disputes of all organizations, for the platform's staff; evidence takes a code of an authenticator app."""

from __future__ import annotations

import logging
from typing import ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.disputes.evidence import FILES, MAX_FILES_BYTES, TEXTS, EvidenceFile, submit_evidence
from billing.disputes.selectors import dispute_by_id, takes_evidence
from billing.incidents import require_operator
from billing.models import Dispute
from marketplace.api.fields import Base64UrlField
from marketplace.api.views.base import ControlView
from marketplace.api.views.refunds import DisputeStatus

logger = logging.getLogger(__name__)


class PlatformDispute(DisputeStatus):
    organization = serializers.CharField(source="top_up.organization.slug")
    status = serializers.CharField(help_text="Stripe's word for where it stands")
    withdrawn_cents = serializers.IntegerField(help_text="taken by the bank and not given back")
    fee_cents = serializers.IntegerField(help_text="Stripe's, borne by the platform")
    evidence_due_at = serializers.DateTimeField(allow_null=True)
    evidence_sent_at = serializers.DateTimeField(allow_null=True)
    takes_evidence = serializers.SerializerMethodField(help_text="whether evidence can be sent now")

    def get_takes_evidence(self, dispute: Dispute) -> bool:
        """Return whether the bank waits for evidence."""
        return takes_evidence(dispute)


class PlatformDisputesView(ControlView):
    """Payments that banks took back, of all organizations."""

    staff_only = True

    class DisputesQuery(serializers.Serializer):
        state = serializers.ChoiceField(choices=Dispute.State.choices, required=False)

    @extend_schema(
        operation_id="list_platform_disputes", parameters=[DisputesQuery], responses=PlatformDispute(many=True)
    )
    def get(self, request: Request) -> Response:
        """Disputes of all organizations, newest first. Platform staff only."""
        rows = Dispute.objects.filter(**self.parse(self.DisputesQuery, query=True))
        rows = rows.select_related("top_up__organization")
        return self.page(rows, PlatformDispute, ordering=("-opened_at", "-id"))


class PlatformDisputeView(ControlView):
    """One dispute."""

    staff_only = True

    @extend_schema(operation_id="get_platform_dispute", responses=PlatformDispute)
    def get(self, request: Request, dispute_id: str) -> Response:
        """One dispute as it stands. Platform staff only."""
        return Response(self.show(PlatformDispute, dispute_by_id(dispute_id)))


class EvidenceView(ControlView):
    """The answer to a bank."""

    staff_only = True
    max_body_size: ClassVar = 2 * MAX_FILES_BYTES - 2**20  # base64 of all files, and the texts

    class SubmitEvidence(serializers.Serializer):
        code = serializers.RegexField(r"^[0-9]{6}$", help_text="what the authenticator app shows now")
        texts = serializers.DictField(
            child=serializers.CharField(), required=False, help_text=f"any of {', '.join(TEXTS)}"
        )
        files = serializers.DictField(
            child=Base64UrlField(), required=False, help_text=f"PDF, PNG or JPEG; any of {', '.join(FILES)}"
        )

    @extend_schema(operation_id="submit_evidence", request=SubmitEvidence, responses=PlatformDispute)
    def post(self, request: Request, dispute_id: str) -> Response:
        """Send evidence to the bank; it takes it once. Platform staff with a second factor only."""
        wanted = self.parse(self.SubmitEvidence)
        assert self.caller.user is not None  # staff_only
        require_operator(user=self.caller.user, code=wanted["code"])
        files = {name: EvidenceFile(content) for name, content in wanted.get("files", {}).items()}
        dispute = submit_evidence(dispute_id=dispute_id, texts=wanted.get("texts", {}), files=files)
        logger.warning("evidence for dispute %s was sent by %s", dispute.pk, self.caller.user.pk)
        return Response(self.show(PlatformDispute, dispute))
