"""Promises begin with a month that has not begun, and neither they nor judged months change."""

import uuid

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

RULES = """
CREATE FUNCTION promises_begin_later() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.starts_on <> date_trunc('month', NEW.starts_on)::date
       OR NEW.starts_on <= (now() AT TIME ZONE 'UTC')::date THEN
        RAISE EXCEPTION 'a promise begins with a month that has not begun' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER promises_promise_begins BEFORE INSERT ON promises_promise
    FOR EACH ROW EXECUTE FUNCTION promises_begin_later();
CREATE TRIGGER promises_promise_append_only BEFORE UPDATE OR DELETE ON promises_promise
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER promises_month_append_only BEFORE UPDATE OR DELETE ON promises_month
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_change();
"""
NO_RULES = """
DROP TRIGGER promises_promise_begins ON promises_promise;
DROP TRIGGER promises_promise_append_only ON promises_promise;
DROP TRIGGER promises_month_append_only ON promises_month;
DROP FUNCTION promises_begin_later();
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0003_referrals"),
        ("catalog", "0007_contract"),
        ("billing", "0003_ledger_rules"),  # billing_refuse_change
    ]

    operations = [
        migrations.CreateModel(
            name="Promise",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("kind", models.CharField(choices=[("ttft", "Ttft"), ("valid", "Valid")], max_length=8)),
                ("bound", models.PositiveIntegerField(null=True)),
                ("starts_on", models.DateField()),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "model",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="promises",
                        to="catalog.model",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Month",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("kind", models.CharField(choices=[("ttft", "Ttft"), ("valid", "Valid")], max_length=8)),
                ("month", models.DateField()),
                ("calls", models.PositiveBigIntegerField()),
                ("missed", models.PositiveBigIntegerField()),
                ("value", models.PositiveBigIntegerField(null=True)),
                ("judged_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "model",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="promise_months",
                        to="catalog.model",
                    ),
                ),
                (
                    "promise",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="months", to="promises.promise"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Refund",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("calls", models.PositiveBigIntegerField()),
                ("missed", models.PositiveBigIntegerField()),
                ("spent_nano_usd", models.PositiveBigIntegerField()),
                ("refund_bps", models.PositiveIntegerField()),
                ("amount_nano_usd", models.PositiveBigIntegerField()),
                ("paid_nano_usd", models.PositiveBigIntegerField(default=0)),
                ("paid_at", models.DateTimeField(null=True)),
                (
                    "bearer",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="promise_refunds_borne",
                        to="accounts.organization",
                    ),
                ),
                (
                    "month",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="refunds",
                        to="promises.month",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="promise_refunds",
                        to="accounts.organization",
                    ),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="promise",
            index=models.Index(fields=["model", "kind", "-starts_on", "-id"], name="promises_in_force"),
        ),
        migrations.AddConstraint(
            model_name="month",
            constraint=models.UniqueConstraint(fields=("model", "kind", "month"), name="promises_month_judged_once"),
        ),
        migrations.AddConstraint(
            model_name="month",
            constraint=models.CheckConstraint(
                condition=models.Q(("missed__lte", models.F("calls"))), name="promises_month_fits"
            ),
        ),
        migrations.AddIndex(
            model_name="refund",
            index=models.Index(
                condition=models.Q(("paid_at__isnull", True)), fields=["id"], name="promises_refund_due"
            ),
        ),
        migrations.AddConstraint(
            model_name="refund",
            constraint=models.UniqueConstraint(fields=("month", "organization"), name="promises_refund_once"),
        ),
        migrations.AddConstraint(
            model_name="refund",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("amount_nano_usd__lte", models.F("spent_nano_usd")),
                    ("missed__lte", models.F("calls")),
                    ("paid_nano_usd__lte", models.F("amount_nano_usd")),
                ),
                name="promises_refund_within_spending",
            ),
        ),
        migrations.RunSQL(RULES, NO_RULES),
    ]
