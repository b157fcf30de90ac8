"""Papers for accountants: billing profiles, numbered papers that never change, and the tax of each payment."""

import uuid
from pathlib import Path

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

SQL = Path(__file__).with_name("sql") / "0016_papers.sql"
DROP = """
DROP FUNCTION billing_issue_paper(text, uuid, text, date, uuid, bigint, bigint, jsonb);
DROP TRIGGER billing_papernumber_follows ON billing_papernumber;
DROP FUNCTION billing_number_follows();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0002_key_lines"),
        ("billing", "0015_payouts"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="PaperNumber",
            fields=[
                ("series", models.CharField(max_length=16, primary_key=True, serialize=False)),
                ("last", models.IntegerField(db_default=0, default=0)),
            ],
        ),
        migrations.CreateModel(
            name="PaymentDetail",
            fields=[
                (
                    "top_up",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="payment_detail",
                        serialize=False,
                        to="billing.topup",
                    ),
                ),
                ("payer", models.JSONField(null=True)),
                ("taxes", models.JSONField()),
            ],
        ),
        migrations.CreateModel(
            name="BillingProfile",
            fields=[
                (
                    "organization",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="billing_profile",
                        serialize=False,
                        to="accounts.organization",
                    ),
                ),
                ("legal_name", models.CharField(max_length=120)),
                ("email", models.EmailField(blank=True, max_length=254)),
                ("line1", models.CharField(max_length=120)),
                ("line2", models.CharField(blank=True, max_length=120)),
                ("postal_code", models.CharField(blank=True, max_length=20)),
                ("city", models.CharField(max_length=80)),
                ("region", models.CharField(blank=True, max_length=80)),
                ("country", models.CharField(max_length=2)),
                ("tax_id", models.CharField(blank=True, max_length=40)),
                ("updated_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "updated_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Paper",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("receipt", "Receipt"),
                            ("credit_note", "Credit Note"),
                            ("invoice", "Invoice"),
                            ("earnings", "Earnings"),
                        ],
                        max_length=16,
                    ),
                ),
                ("series", models.CharField(max_length=16)),
                ("number", models.IntegerField()),
                ("subject", models.CharField(max_length=80)),
                ("period", models.DateField(null=True)),
                ("total_nano_usd", models.BigIntegerField()),
                ("tax_nano_usd", models.BigIntegerField()),
                ("content", models.JSONField()),
                ("issued_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "corrects",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="corrected_by",
                        to="billing.paper",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="papers", to="accounts.organization"
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["organization", "-issued_at"], name="billing_paper_organization")],
                "constraints": [
                    models.UniqueConstraint(fields=("series", "number"), name="billing_paper_unique_number"),
                    models.UniqueConstraint(fields=("kind", "subject"), name="billing_paper_unique_subject"),
                ],
            },
        ),
        migrations.RunSQL(SQL.read_text(), DROP),
    ]
