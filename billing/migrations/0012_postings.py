"""Entries are posted: each gets a number in the order in which entries became visible, and a month that can close."""

from pathlib import Path

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

SQL = Path(__file__).with_name("sql") / "0012_postings.sql"
DROP = """
DROP FUNCTION billing_close_month(date, text), billing_post_entries(integer), billing_open_month(date);
DROP TRIGGER billing_posting_month_open ON billing_posting;
DROP FUNCTION billing_refuse_closed_month();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0011_charge_checks"),
    ]

    operations = [
        migrations.CreateModel(
            name="Period",
            fields=[
                ("month", models.DateField(primary_key=True, serialize=False)),
                ("closed_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("closed_by", models.TextField()),
                ("last_sequence", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="PostingMark",
            fields=[
                ("id", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("sequence", models.BigIntegerField(db_default=0, default=0)),
                ("looked_from", models.BigIntegerField(db_default=0, default=0)),
            ],
        ),
        migrations.CreateModel(
            name="Instant",
            fields=[
                ("sequence", models.BigIntegerField(primary_key=True, serialize=False)),
                ("reached_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["reached_at"], name="billing_instant_time")],
            },
        ),
        migrations.CreateModel(
            name="PeriodBalance",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "account_id", "period", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("period", models.DateField()),
                ("opening", models.BigIntegerField()),
                ("closing", models.BigIntegerField()),
                (
                    "account",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="billing.account",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="PeriodMovement",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "account_id", "period", "kind", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("period", models.DateField()),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("prediction", "Prediction"),
                            ("top_up", "Top Up"),
                            ("stripe_fee", "Stripe Fee"),
                            ("promotion", "Promotion"),
                            ("reversal", "Reversal"),
                        ],
                        max_length=16,
                    ),
                ),
                ("amount", models.BigIntegerField()),
                ("lines", models.BigIntegerField()),
                (
                    "account",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="billing.account",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Posting",
            fields=[
                ("sequence", models.BigIntegerField(primary_key=True, serialize=False)),
                ("amount", models.BigIntegerField()),
                ("period", models.DateField()),
                ("balance", models.BigIntegerField()),
                (
                    "account",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="postings",
                        to="billing.account",
                    ),
                ),
                (
                    "transaction",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="postings",
                        to="billing.ledgertransaction",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["account", "sequence"], name="billing_posting_account"),
                    models.Index(fields=["account", "period", "sequence"], name="billing_posting_period"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("transaction", "account"), name="billing_posting_unique_entry")
                ],
            },
        ),
        migrations.AlterField(
            model_name="incident",
            name="kind",
            field=models.CharField(
                choices=[
                    ("ledger_sum", "Ledger Sum"),
                    ("balance_cache", "Balance Cache"),
                    ("held_cache", "Held Cache"),
                    ("charge_mismatch", "Charge Mismatch"),
                    ("posting_mismatch", "Posting Mismatch"),
                    ("payment_mismatch", "Payment Mismatch"),
                    ("stripe_event", "Stripe Event"),
                    ("receipt_refused", "Receipt Refused"),
                    ("receipt_mismatch", "Receipt Mismatch"),
                    ("release_without_demand", "Release Without Demand"),
                    ("release_budget", "Release Budget"),
                ],
                max_length=24,
            ),
        ),
        migrations.RunSQL(SQL.read_text(), DROP),
    ]
