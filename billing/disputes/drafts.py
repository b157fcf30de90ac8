"""The texts with which staff begin their evidence: what the platform's own rows say about a disputed payment."""

from __future__ import annotations

from billing.models import BillingProfile, Dispute, PaymentDetail
from billing.rollups.usage import usage_summary
from protocol.money import usd

PRODUCT = (
    "Prepaid credit for predictions by machine-learning models, delivered over an API at once. The customer bought the "
    "credit on a payment page and used it with keys that only members of their organization have."
)
REFUNDS = "Unused credit is paid back to the card on request, at any time, on the wallet page. Used credit is not."
MAX_DAYS = 60  # of use, the newest


def draft_texts(dispute: Dispute) -> dict[str, str]:
    """Return texts of evidence by a key of `evidence.TEXTS`; the staff read and change them before they are sent."""
    top_up = dispute.top_up
    detail = PaymentDetail.objects.filter(top_up=top_up).first()
    profile = BillingProfile.objects.filter(organization=top_up.organization_id).first()
    payer = (detail.payer if detail else None) or {}
    since = top_up.credited_at or top_up.created_at
    days = usage_summary(top_up.organization, group_by=["day", "model"], since=since.date())
    drafts = {
        "product_description": PRODUCT,
        "refund_policy_disclosure": REFUNDS,
        "customer_name": payer.get("name") or (profile.legal_name if profile else "") or top_up.organization.name,
        "customer_email_address": payer.get("email") or (profile.email if profile else ""),
        "access_activity_log": "\n".join(
            f"{row.day} UTC, {row.model_name}: predictions {row.predictions}, paid {usd(row.cost_nano_usd)}"
            for row in days[:MAX_DAYS]
        ),
        "service_date": f"{days[0].day}" if days else "",
    }
    return {name: text for name, text in drafts.items() if text}
