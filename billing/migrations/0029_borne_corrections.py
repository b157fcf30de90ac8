"""Corrections may be borne by one of those who earned a charge. The way back is closed once there is such a correction."""

from pathlib import Path

from django.db import migrations, models
from django.db.models import Q

SQL = Path(__file__).with_name("sql")
_OF_OLD = (SQL / "0020_corrections.sql").read_text()
_TAKE_BACK, _TERMS = "CREATE FUNCTION billing_take_back", "-- The terms of holds and usage"
UNDO = """
DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM billing_correction WHERE bearer <> 'all') THEN
        RAISE EXCEPTION 'there are corrections that one bears: older code would not know whose they are';
    END IF;
END $$;
DROP TRIGGER billing_correction_borne ON billing_correction;
DROP FUNCTION billing_check_bearer();
DROP FUNCTION billing_correct_prediction(uuid, bigint, text, uuid, text, uuid);
DROP FUNCTION billing_take_back(bigint, bigint, bigint, text, uuid), billing_share_left(bigint, bigint, uuid);
""" + _OF_OLD[_OF_OLD.index(_TAKE_BACK) : _OF_OLD.index(_TERMS)]


class Migration(migrations.Migration):
    dependencies = [("billing", "0028_alerts_are_told_elsewhere")]

    operations = [
        migrations.AddField(
            "correction",
            "bearer",
            models.CharField(
                choices=[("all", "All"), ("platform", "Platform"), ("payee", "Payee")],
                default="all",
                db_default="all",
                max_length=8,
            ),
        ),
        migrations.AddField("correction", "bearer_organization_id", models.UUIDField(null=True)),
        migrations.AddConstraint(
            "correction",
            models.CheckConstraint(
                condition=Q(bearer__in=["all", "platform"], bearer_organization_id__isnull=True)
                | Q(bearer="payee", bearer_organization_id__isnull=False),
                name="billing_correction_bearer_fits",
            ),
        ),
        # Answers that were cut off, of which a month's measure is taken by model: few rows, and none of a settlement.
        migrations.AddIndex(
            "hold",
            models.Index(
                fields=["model_id", "closed_at"],
                condition=Q(state="released", close_reason="length"),
                name="billing_hold_cut_off",
            ),
        ),
        migrations.RunSQL((SQL / "0029_borne_corrections.sql").read_text(), UNDO),
    ]
