"""Alerts about budgets, webhooks, and the deliveries of alerts: tables of their own that no other table names."""

import uuid

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0002_key_lines"),
        ("billing", "0017_cards_and_refunds"),
    ]

    operations = [
        migrations.CreateModel(
            name="BudgetAlert",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("node_id", models.UUIDField()),
                ("node_kind", models.CharField(max_length=12)),
                ("node_name", models.CharField(max_length=100)),
                (
                    "period",
                    models.CharField(choices=[("day", "Day"), ("month", "Month"), ("total", "Total")], max_length=5),
                ),
                ("period_start", models.DateField()),
                ("percent", models.PositiveSmallIntegerField()),
                ("refused", models.BooleanField(db_default=False, default=False)),
                ("limit_nano_usd", models.BigIntegerField()),
                ("spent_nano_usd", models.BigIntegerField()),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("announced_at", models.DateTimeField(null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Webhook",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("url", models.CharField(max_length=500)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="accounts.organization"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="AlertDelivery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("attempts", models.PositiveSmallIntegerField(db_default=0, default=0)),
                (
                    "next_attempt_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), null=True),
                ),
                ("delivered_at", models.DateTimeField(null=True)),
                ("error", models.CharField(blank=True, db_default="", default="", max_length=200)),
                (
                    "alert",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="deliveries", to="billing.budgetalert"
                    ),
                ),
                (
                    "webhook",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="+", to="billing.webhook"
                    ),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="budgetalert",
            index=models.Index(fields=["organization", "-id"], name="billing_alert_organization"),
        ),
        migrations.AddIndex(
            model_name="budgetalert",
            index=models.Index(
                condition=models.Q(("announced_at__isnull", True)), fields=["id"], name="billing_alert_new"
            ),
        ),
        migrations.AddConstraint(
            model_name="budgetalert",
            constraint=models.UniqueConstraint(
                fields=("node_id", "period", "period_start", "limit_nano_usd", "percent"), name="billing_alert_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="budgetalert",
            constraint=models.CheckConstraint(
                condition=models.Q(("percent__in", (50, 80, 100))), name="billing_alert_percent"
            ),
        ),
        migrations.AddConstraint(
            model_name="webhook",
            constraint=models.UniqueConstraint(fields=("organization", "url"), name="billing_webhook_unique_url"),
        ),
        migrations.AddIndex(
            model_name="alertdelivery",
            index=models.Index(
                condition=models.Q(("next_attempt_at__isnull", False)),
                fields=["next_attempt_at"],
                name="billing_alert_delivery_waiting",
            ),
        ),
    ]
