"""Refunds and disputes: the parts of a payment that go back, and the rules that hold them."""

from pathlib import Path

from django.db import migrations, models
from django.db.models import F, Q

SQL = Path(__file__).with_name("sql") / "0023_refunds_and_disputes.sql"
DROP = """
DROP TRIGGER billing_topuprefund_guard ON billing_topuprefund;
DROP TRIGGER billing_topuprefund_within ON billing_topuprefund;
DROP TRIGGER billing_topuprefund_no_truncate ON billing_topuprefund;
DROP TRIGGER billing_dispute_guard ON billing_dispute;
DROP TRIGGER billing_dispute_within ON billing_dispute;
DROP TRIGGER billing_dispute_no_truncate ON billing_dispute;
DROP FUNCTION billing_guard_refund(), billing_guard_dispute(), billing_check_given_back();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0021_rollups")]

    operations = [
        migrations.AddField("dispute", "credit_cents", models.PositiveIntegerField(db_default=0, default=0)),
        migrations.AddField("dispute", "tax_cents", models.PositiveIntegerField(db_default=0, default=0)),
        migrations.AddField("dispute", "withdrawn_cents", models.IntegerField(db_default=0, default=0)),
        migrations.AddField("dispute", "fee_cents", models.IntegerField(db_default=0, default=0)),
        migrations.AddField("topuprefund", "failed_at", models.DateTimeField(null=True)),
        migrations.AddField("topuprefund", "sent_at", models.DateTimeField(null=True)),
        migrations.AddField(
            "topuprefund", "failure", models.CharField(blank=True, db_default="", default="", max_length=64)
        ),
        migrations.AddConstraint(
            "dispute",
            models.CheckConstraint(
                condition=Q(amount_cents__gte=F("credit_cents") + F("tax_cents")), name="billing_dispute_parts"
            ),
        ),
        migrations.AddConstraint(
            "topuprefund",
            models.CheckConstraint(
                condition=Q(failed_at__isnull=True, sent_at__isnull=True, state="requested")
                | Q(failed_at__isnull=True, sent_at__isnull=False, state="sent")
                | Q(failed_at__isnull=False, state="failed"),
                name="billing_top_up_refund_times",
            ),
        ),
        migrations.RunSQL(SQL.read_text(), DROP),
    ]
