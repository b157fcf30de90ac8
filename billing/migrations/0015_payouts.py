"""Creators' accounts at Stripe Connect and their payouts, whose states move forward only."""

import uuid
from pathlib import Path

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

SQL = Path(__file__).with_name("sql") / "0015_payouts.sql"
DROP = """
DROP TRIGGER billing_payout_guard ON billing_payout;
DROP TRIGGER billing_payout_no_truncate ON billing_payout;
DROP FUNCTION billing_guard_payout();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0002_key_lines"),
        ("billing", "0014_gross_price"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="PayoutAccount",
            fields=[
                (
                    "organization",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="payout_account",
                        serialize=False,
                        to="accounts.organization",
                    ),
                ),
                ("stripe_account_id", models.CharField(max_length=255, null=True, unique=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("started", "Started"),
                            ("active", "Active"),
                            ("restricted", "Restricted"),
                            ("closed", "Closed"),
                        ],
                        default="started",
                        max_length=10,
                    ),
                ),
                ("details_submitted", models.BooleanField(db_default=False, default=False)),
                ("requirements", models.JSONField(default=list)),
                ("disabled_reason", models.CharField(blank=True, db_default="", default="", max_length=100)),
                ("bank_name", models.CharField(blank=True, db_default="", default="", max_length=100)),
                ("bank_last4", models.CharField(blank=True, db_default="", default="", max_length=4)),
                (
                    "schedule",
                    models.CharField(
                        choices=[("manual", "Manual"), ("weekly", "Weekly"), ("monthly", "Monthly")],
                        default="monthly",
                        max_length=8,
                    ),
                ),
                ("minimum_cents", models.PositiveIntegerField(db_default=2500, default=2500)),
                ("last_scheduled_on", models.DateField(null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("checked_at", models.DateTimeField(null=True)),
                (
                    "next_check_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), null=True),
                ),
                ("checks", models.PositiveIntegerField(db_default=0, default=0)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("next_check_at__isnull", False)),
                        fields=["next_check_at"],
                        name="billing_payout_account_due",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("minimum_cents__gte", 1), ("minimum_cents__lte", 1000000)),
                        name="billing_payout_account_minimum_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("state", "started"), ("stripe_account_id__isnull", False), _connector="OR"),
                        name="billing_payout_account_exists_at_stripe",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Payout",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("stripe_account_id", models.CharField(max_length=255)),
                ("amount_cents", models.PositiveIntegerField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("created", "Created"),
                            ("transferred", "Transferred"),
                            ("paying", "Paying"),
                            ("paid", "Paid"),
                            ("failed", "Failed"),
                            ("returned", "Returned"),
                        ],
                        default="created",
                        max_length=11,
                    ),
                ),
                ("transfer_id", models.CharField(max_length=255, null=True, unique=True)),
                ("bank_payout_id", models.CharField(max_length=255, null=True, unique=True)),
                ("return_id", models.CharField(max_length=255, null=True, unique=True)),
                ("frozen_by", models.CharField(blank=True, db_default="", default="", max_length=16)),
                ("failure_code", models.CharField(blank=True, db_default="", default="", max_length=64)),
                ("bank_last4", models.CharField(blank=True, db_default="", default="", max_length=4)),
                ("arrives_on", models.DateField(null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("transferred_at", models.DateTimeField(null=True)),
                ("paid_at", models.DateTimeField(null=True)),
                ("returned_at", models.DateTimeField(null=True)),
                (
                    "next_check_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), null=True),
                ),
                ("checks", models.PositiveIntegerField(db_default=0, default=0)),
                ("refusals", models.PositiveIntegerField(db_default=0, default=0)),
                (
                    "ledger_transaction",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="payout",
                        to="billing.ledgertransaction",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="payouts", to="accounts.organization"
                    ),
                ),
                (
                    "requested_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["organization", "-created_at"], name="billing_payout_newest"),
                    models.Index(
                        condition=models.Q(("next_check_at__isnull", False)),
                        fields=["next_check_at"],
                        name="billing_payout_due",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("amount_cents__gte", 1), ("amount_cents__lte", 99999999)),
                        name="billing_payout_amount_range",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("state__in", ["created", "transferred", "paying", "failed"])),
                        fields=("organization",),
                        name="billing_payout_one_open",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["created", "returned"]), ("transfer_id__isnull", False), _connector="OR"
                        ),
                        name="billing_payout_left_by_transfer",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("state__in", ["paying", "paid"]), _negated=True),
                            ("bank_payout_id__isnull", False),
                            _connector="OR",
                        ),
                        name="billing_payout_paying_at_stripe",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("returned_at__isnull", False), ("state", "returned")),
                            models.Q(models.Q(("state", "returned"), _negated=True), ("returned_at__isnull", True)),
                            _connector="OR",
                        ),
                        name="billing_payout_returned_has_time",
                    ),
                ],
            },
        ),
        migrations.RunSQL(SQL.read_text(), DROP),
    ]
