"""Alerts of an organization, their deliveries, what is muted and what was read."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0003_referrals"),
        ("billing", "0026_printed_papers"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Alert",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=40)),
                ("once", models.CharField(max_length=200)),
                ("subject", models.CharField(max_length=200)),
                ("text", models.TextField()),
                ("data", models.JSONField()),
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
            name="Delivery",
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
                        on_delete=django.db.models.deletion.CASCADE, related_name="deliveries", to="alerts.alert"
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
        migrations.CreateModel(
            name="Mute",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=40)),
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
            name="Seen",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("alert_id", models.BigIntegerField()),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="accounts.organization"
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
        ),
        migrations.AddIndex(
            model_name="alert",
            index=models.Index(fields=["organization", "-id"], name="alerts_alert_feed"),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.UniqueConstraint(fields=("organization", "kind", "once"), name="alerts_alert_once"),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("next_attempt_at__isnull", False)),
                fields=["next_attempt_at"],
                name="alerts_delivery_waiting",
            ),
        ),
        migrations.AddConstraint(
            model_name="mute",
            constraint=models.UniqueConstraint(fields=("organization", "kind"), name="alerts_mute_once"),
        ),
        migrations.AddConstraint(
            model_name="seen",
            constraint=models.UniqueConstraint(fields=("organization", "user"), name="alerts_seen_once"),
        ),
    ]
